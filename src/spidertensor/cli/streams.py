"""The options of `spider fit` for streams in brokers."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spidertensor.cli import options
from spidertensor.cli.errors import CommandError

if TYPE_CHECKING:
    from spidertensor.sources import Source, Stream


class OnGap(StrEnum):
    RAISE = "raise"
    CONTINUE = "continue"


UntilEnd = Annotated[
    bool,
    typer.Option("--until-end", help="Of a stream: stop at its current end instead of waiting for more."),
]
OnGapOption = Annotated[
    OnGap,
    typer.Option(
        metavar="raise|continue",
        help="If messages of a stream were deleted before they were read: stop, or go on without them.",
    ),
]
BrokerConfig = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Settings of the broker's client, such as passwords: lines of name=value, or .toml.",
    ),
]
DeadLetter = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Skip bad messages and send them, with the reason, to this stream."),
]


def opened(
    name: str,
    format: str | None,  # noqa: A002
    columns: str | None,
    delimiter: str | None,
    encoding: str | None,
    decimal: str | None,
    *,
    until_end: bool,
    on_gap: OnGap,
    config: Path | None,
) -> Source | Stream:
    """The source with this name: a URL, a file, or "-"."""
    from spidertensor import sources

    if sources.is_url(name):
        if delimiter or encoding or decimal:
            raise CommandError("--delimiter, --encoding and --decimal are for files, not for streams")
        names = None if columns is None else options.words(columns)
        return sources.stream_at(name, format, names, config=config, on_gap=on_gap.value, until_end=until_end)
    if until_end or on_gap != OnGap.RAISE:
        raise CommandError("--until-end and --on-gap are for streams, whose names are URLs")
    return options.source(name, format, columns, delimiter, encoding, decimal)


def dead_letters(url: str | None, config: Path | None, source: Source | Stream) -> Stream | None:
    """Where bad messages of the source are sent."""
    from spidertensor import sources

    if url is None:
        return None
    if not sources.is_url(url):
        raise CommandError(f"--dead-letter takes the URL of a stream, not {url!r}")
    letters = sources.stream_at(url, "json", config=config)
    if letters.name == source.name:  # each letter would be a bad message, and come back for ever
        raise CommandError(f"--dead-letter {url}: is the stream that is read")
    return letters
