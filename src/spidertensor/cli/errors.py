"""Errors of the command, and faults of the library in its words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spidertensor.learner import remedies

if TYPE_CHECKING:
    from spidertensor.faults import Fault


class CommandError(Exception):
    """What the user has to know, in one line; exit code 2."""


def worded(fault: Fault) -> str:
    """The reason as it is, with the options of the command as the remedy."""
    return fault.text(remedies.for_command(fault))
