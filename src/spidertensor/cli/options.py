"""Options shared by several commands, and parsing of their values."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spidertensor.cli.errors import CommandError

if TYPE_CHECKING:
    from spidertensor.estimator.columns import Schema
    from spidertensor.sources import Source
    from spidertensor.spider.likelihoods import Likelihood


class MissingId(StrEnum):
    ERROR = "error"
    SKIP = "skip"
    OWN = "own"


class Engine(StrEnum):
    SEQUENTIAL = "sequential"
    VECTORIZED = "vectorized"


class Calibration(StrEnum):
    AUTO = "auto"
    NEXT = "next"
    FORECAST = "forecast"
    REST = "rest"


ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="A model file written by spider fit.")]
SourceName = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A csv, tsv, jsonl (optionally .gz, .zst or .zip) or parquet file; - for standard input.",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="Format if the file has no extension, such as csv.gz. Standard input defaults to csv.",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES", help="Column names of a csv or tsv without a header, such as user,movie,rating."
    ),
]
Delimiter = Annotated[
    str | None,
    typer.Option(metavar="CHAR", help="Column separator of a csv: ';', '|' or tab."),
]
Encoding = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Text encoding, such as latin-1, cp1252 or utf-16. Default: utf-8."),
]
Decimal = Annotated[
    str | None,
    typer.Option(metavar="CHAR", help="Decimal mark of a csv: , if 2.5 is written 2,5."),
]
MissingIds = Annotated[
    MissingId | None,
    typer.Option(
        "--missing-id",
        metavar="error|skip|own",
        help="On a missing id: treat the row as bad; skip it; or treat all missing ids of a mode as one "
        "node. Default: as the model was fitted, or error.",
    ),
]
BinRules = Annotated[
    list[str] | None,
    typer.Option(
        "--bin",
        metavar="MODE=RULE",
        help="Bin a numeric column of ids: price=quantiles:20 (of the first 10,000 numbers), price=width:0.5 "
        "or price=edges:1,5,10. Repeat for other modes. Numbers are better learned as attributes: "
        "--modes user,movie,offer=price --kind price=number.",
    ),
]
Modes = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="The id columns, such as user,movie. With attributes: user+age+gender,movie+genres. Columns "
        "that describe the row, not an id: when=hour+time. Also combinations, user*app, and the last ids of "
        "another mode, user+recent(movie,50). With --resume and --add, attributes can be added.",
    ),
]
Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        metavar="COLUMN=KIND",
        help="What an attribute is, if its first values do not show it: value, number, calendar, many, or "
        "many:| for texts such as drama|war. Repeat for other columns.",
    ),
]
AttributeFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--attributes",
        metavar="MODE=FILE",
        help="A file that describes ids, one row for each: movie=movies.csv has the column movie and "
        "attributes of movies. Repeat for other modes.",
    ),
]
Scaling = Annotated[
    str | None,
    typer.Option(
        metavar="SHIFT,SCALE",
        help="Shift and scale of the values, such as 3.5,1.1. By default estimated from the first values.",
    ),
]
Bounds = Annotated[
    str | None,
    typer.Option(
        metavar="LOW,HIGH|seen",
        help="Keep predicted means and intervals within these bounds, such as 1,5, and refuse other values; "
        "seen: within the values learned so far.",
    ),
]
Memory = Annotated[
    float | None,
    typer.Option(
        metavar="N", help="Forget each node's past gradually, over N of its own entries. Off by default."
    ),
]
MaxNodes = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Maximum nodes per mode: 100000, or 100000,none. A new id replaces the node unseen for longest.",
    ),
]
Committee = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Number of models that learn side by side and predict together. Default: 6; 1 is faster.",
    ),
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Seed for the initial weights.")]
NetworkName = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="MODULE:NAME",
        help="Your CustomNetwork: NAME in MODULE, looked up in this folder first. Runs the module.",
    ),
]
Interval = Annotated[
    float | None,
    typer.Option(
        "--interval",
        metavar="COVERAGE",
        help="Add low and high; an observation lies between them with this probability, such as 0.9.",
    ),
]
CalibrationName = Annotated[
    Calibration,
    typer.Option(
        "--calibration",
        metavar="auto|next|forecast|rest",
        help="Which errors make the interval as wide as it is: those of predictions just before an entry was "
        "learned, of forecasts, or of the entries that fit held back. By default, those of the way the model "
        "was used last.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def source(
    name: str,
    format: str | None,  # noqa: A002
    columns: str | None,
    delimiter: str | None,
    encoding: str | None,
    decimal: str | None,
) -> Source:
    """SOURCE with its format options."""
    from spidertensor import sources  # imported late: slow

    names = None if columns is None else words(columns)
    delimiter = {"tab": "\t", "\\t": "\t"}.get(delimiter or "", delimiter)
    return sources.source_by_name(
        name, format, names, delimiter=delimiter, encoding=encoding, decimal=decimal
    )


def bin_rules(texts: list[str] | None) -> dict[str, str] | None:
    """The rules of --bin by mode, or None."""
    from spidertensor.sources import Bins, SourceError

    rules: dict[str, str] = {}
    for text in texts or ():
        name, equals, rule = text.partition("=")
        if not equals or name in rules:
            raise CommandError(
                f"--bin takes MODE=RULE, once per mode, such as price=quantiles:20, not {text!r}"
            )
        try:
            Bins(rule)
        except SourceError as error:
            raise CommandError(f"--bin {name}: {error.reason}") from None
        rules[name] = rule
    return rules or None


def modes_and_schema(modes: str | None, kinds: list[str] | None) -> tuple[list[str] | None, Schema | None]:
    """The names of --modes, and with attributes all about them; a plain list of ids has no schema."""
    of_column: dict[str, str] = {}
    for text in kinds or ():
        name, equals, kind = text.partition("=")
        if not equals or name in of_column:
            raise CommandError(
                f"--kind takes COLUMN=KIND, once per column, such as genres=many:|, not {text!r}"
            )
        of_column[name] = kind
    if modes is None or not (set("+=*") & set(modes) or "recent(" in modes):
        if of_column:
            raise CommandError("--kind is for attributes: name them in --modes as well, such as movie+genres")
        return (None if modes is None else words(modes)), None
    from spidertensor.estimator.columns import Schema  # imported late: slow

    try:
        schema = Schema.parse_text(modes, of_column)
    except ValueError as error:
        raise CommandError(f"--modes {modes}: {error}") from None
    return list(schema.names), schema


def words(text: str) -> list[str]:
    """ "user, movie" -> ["user", "movie"]"""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(option: str, text: str, kind: type = int) -> list[Any]:
    try:
        return [kind(word) for word in words(text)]
    except ValueError:
        raise CommandError(f"{option} takes numbers separated by commas, not {text!r}") from None


def scaling(text: str | None) -> tuple[float, float] | None:
    """The text of --scaling as the parameter `scaling`."""
    if text is None:
        return None
    from spidertensor.estimator.parameters import is_scaling  # imported late: slow

    pair = numbers("--scaling", text, float)
    if not is_scaling(pair):
        raise CommandError(
            f"--scaling takes two numbers, a shift and a positive scale, such as 3.5,1.1, not {text!r}"
        )
    return pair[0], pair[1]


def bounds(text: str | None) -> tuple[float, float] | str | None:
    """The text of --bounds as the parameter `bounds`."""
    from spidertensor.estimator.bounds import SEEN  # imported late: slow
    from spidertensor.estimator.parameters import is_bounds

    if text is None or text == SEEN:
        return text
    pair = numbers("--bounds", text, float)
    if not is_bounds(pair):
        raise CommandError(f"--bounds takes the lowest and the highest value, such as 1,5, not {text!r}")
    return pair[0], pair[1]


def check_interval(
    coverage: float | None, calibration: Calibration, model: Path, likelihood: Likelihood
) -> None:
    """Raise an error if the model cannot give intervals of this coverage. None: none requested"""
    if coverage is None:
        if calibration != Calibration.AUTO:
            raise CommandError("--calibration is for --interval")
        return
    if not 0 < coverage < 1:
        raise CommandError(f"--interval takes a probability between 0 and 1, such as 0.9, not {coverage:g}")
    if not (likelihood.intervals or likelihood.ordinal):
        raise CommandError(
            f"{model} predicts a {likelihood.mean_name}, which has no interval; omit --interval"
        )


def seconds(text: str) -> float:
    """ "30s", "5m", "1h", "2d" or "never" """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h|d|)", text.strip())
    if text.strip() == "never":
        return math.inf
    if not match:
        raise CommandError(f"a time looks like 30s, 5m, 1h or never, not {text!r}")
    return float(match[1]) * {"s": 1, "": 1, "m": 60, "h": 3600, "d": 86_400}[match[2]]


def passes(text: str) -> int | str:
    """The text of --passes as the parameter `passes`."""
    if text == "auto":
        return text
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise CommandError(f"--passes takes a whole number from 1 on, or auto, not {text!r}")
    return int(text)


def given(
    texts: Sequence[str], names: Sequence[str], model: Path, lists: Collection[str] = ()
) -> dict[str, Any]:
    """The texts of --given by mode or attribute; CommandError for others than `names`.

    lists: those of which there may be several, in order
    """
    fixed: dict[str, Any] = {}
    for text in texts:
        name, equals, raw = text.partition("=")
        if not equals:
            raise CommandError(f"--given takes mode=id, not {text!r}")
        if name in lists:
            raw = [*fixed.get(name, []), raw]
        elif name in fixed:
            raise CommandError(f"--given names {name} twice: write it once")
        fixed[name] = raw
    if unknown := [name for name in fixed if name not in names]:
        raise CommandError(f"{model} has no mode {unknown[0]!r}, only: {', '.join(names)}")
    return fixed


def max_nodes(text: str) -> int | tuple[int | None, ...] | None:
    try:
        limits = [None if word == "none" else int(word) for word in words(text)]
    except ValueError:
        limits = []
    if not limits:
        raise CommandError(f"--max-nodes takes a number, or for each mode a number or none, not {text!r}")
    return limits[0] if len(limits) == 1 else tuple(limits)
