"""What keeps a learner from starting."""

from __future__ import annotations

from spidertensor.faults import Fault


class LearnerError(Fault, RuntimeError):
    """A model that cannot go on as it was asked to; see Fault for its parts."""
