"""What goes wrong, in the words of the command.

Faults of the library come in parts (spidertensor.faults): the reason is shown as it is, and where the remedy
is an option of the command, REMEDIES names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spidertensor.faults import Fault

# By the kind of a fault. A kind that is not here has a remedy that is the same in Python.
REMEDIES = {
    "too far": "leave it out, clip it, or pass a fitting --scaling SHIFT,SCALE",
    "no scale": "if that is wrong, pass --scaling SHIFT,SCALE",
    "unclipped": "leave it out, clip it, or pass a fitting --scaling SHIFT,SCALE",
    "clipped": "look at the values; if they are as they should be, pass a larger --clip",
    "refused": "look at the values, or pass a fitting --scaling SHIFT,SCALE",
    "no header": "if the first line is not a header, name the columns with --columns",
    "tabs": "use --format tsv",
    "commas": "use --format csv",
    "gap": "--on-gap continue goes on without them",
    "secret": "put user names, passwords and other settings in a file, and pass --broker-config FILE",
    "columns": "see --format and --columns",
    "delimiter": "name it with --delimiter",
    "UTF-16": "use --encoding utf-16",
    "network missing": "pass it with --network MODULE:NAME",
    "network given": "leave out --network",
    "steady": "compare with continuous values: spider evaluate with and without --counts",
    "0 or 1": "learn them with --binary",
    "few nodes": "pass a smaller --negatives",
    "lost": "the same command with --resume continues from the last save",
}


class CommandError(Exception):
    """What the user has to know, in one line; exit code 2."""


def told(fault: Fault) -> str:
    return fault.text(REMEDIES.get(fault.kind))
