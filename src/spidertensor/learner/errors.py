"""The error of a learner that cannot start."""

from __future__ import annotations

from spidertensor.faults import Fault


class LearnerError(Fault, RuntimeError):
    """The model cannot continue as requested. Parts: see Fault."""
