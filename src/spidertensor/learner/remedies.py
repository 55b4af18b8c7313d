"""Remedies for faults, worded for the command line and for the service.

A fault of the library carries its remedy in Python's terms. This table overrides it, by the kind of the
fault, where a user of the command or a client of the service would write something else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from spidertensor.faults import Fault


class Remedy(NamedTuple):
    """None: the remedy of the fault itself."""

    command: str | None = None
    service: str | None = None


_SCALED = "start the model with a suitable --scaling SHIFT,SCALE"
_LEAVE_OUT = Remedy(
    "leave it out, clip it, or pass a suitable --scaling SHIFT,SCALE", f"leave it out, or {_SCALED}"
)
_WORSE = Remedy("check the columns and the order of the rows; if the values drift, use --memory")

REMEDIES = {
    "too far": _LEAVE_OUT,
    "unclipped": _LEAVE_OUT,
    "clipped": Remedy(
        "check the values; if they are correct, pass a larger --clip", "check the values"
    ),
    "refused": Remedy(
        "check the values, or pass a suitable --scaling SHIFT,SCALE", f"check the values, or {_SCALED}"
    ),
    "no scale": Remedy(
        "if that is wrong, pass --scaling SHIFT,SCALE",
        "if that is wrong, start the model with --scaling SHIFT,SCALE",
    ),
    "steady": Remedy(
        "compare with continuous values: spider evaluate with and without --counts",
        "compare with a model of continuous values, without --counts",
    ),
    "0 or 1": Remedy("learn them with --binary", "start the model with --binary"),
    "number as id": Remedy(
        "name it as an attribute, such as price in --modes user,item,of=price --kind price=number",
        "start a model that has it as an attribute: --modes user,item,of=price --kind price=number",
    ),
    "time as id": Remedy(
        "name it as an attribute, such as time in --modes user,item,when=time --kind time=calendar",
        "start a model that has it as an attribute: --modes user,item,when=time --kind time=calendar",
    ),
    "id": Remedy(service="send a number, a string or a boolean"),
    "calibration": Remedy("leave out --calibration", "leave out calibration"),
    "no header": Remedy("if the first line is not a header, name the columns with --columns"),
    "tabs": Remedy("use --format tsv"),
    "commas": Remedy("use --format csv"),
    "gap": Remedy("use --on-gap continue to go on without them"),
    "restored": Remedy(
        "go back to a model file from before that, or use --on-gap continue to learn only what is later than "
        "the last message learned"
    ),
    "secret": Remedy("put user names, passwords and other settings in a file, and pass --broker-config FILE"),
    "columns": Remedy("see --format and --columns"),
    "delimiter": Remedy("name it with --delimiter"),
    "UTF-16": Remedy("use --encoding utf-16"),
    "network missing": Remedy("pass it with --network MODULE:NAME"),
    "network given": Remedy("leave out --network"),
    "few nodes": Remedy("pass a smaller --negatives"),
    "lost": Remedy("run the same command with --resume to continue from the last save"),
    "worse than mean": _WORSE,
    "worse than biases": _WORSE,
    "no value column": Remedy("use --value"),
    "learned already": Remedy(
        "use --resume to continue after it, or --add --again to learn it once more"
    ),
}  # fmt: skip


def for_command(fault: Fault) -> str:
    remedy = REMEDIES.get(fault.kind, Remedy()).command
    return fault.remedy if remedy is None else remedy


def for_service(fault: Fault) -> str:
    remedy = REMEDIES.get(fault.kind, Remedy()).service
    return fault.remedy if remedy is None else remedy
