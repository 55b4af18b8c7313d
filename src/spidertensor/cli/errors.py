"""Command errors, and library faults worded for the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spidertensor.learner import remedies

if TYPE_CHECKING:
    from spidertensor.faults import Fault


class CommandError(Exception):
    """A one-line message for the user; exit code 2."""


def worded(fault: Fault) -> str:
    """The reason, with a remedy in terms of command options."""
    return fault.text(remedies.for_command(fault))
