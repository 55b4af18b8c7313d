"""Options for streams in brokers."""

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
    typer.Option("--until-end", help="Stop at the current end of a stream instead of waiting for more."),
]
OnGapOption = Annotated[
    OnGap,
    typer.Option(
        metavar="raise|continue",
        help="If messages were deleted before they could be read: stop, or continue without them.",
    ),
]
BrokerConfig = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Broker client settings such as passwords: lines of name=value, or .toml.",
    ),
]
DeadLetter = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Skip bad messages and send them to this stream, with the reason."),
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
    """The source of this name: a URL, a file, or "-"."""
    from spidertensor import sources

    if sources.is_url(name):
        if delimiter or encoding or decimal:
            raise CommandError("--delimiter, --encoding and --decimal are for files, not for streams")
        names = None if columns is None else options.words(columns)
        return sources.stream_at(name, format, names, config=config, on_gap=on_gap.value, until_end=until_end)
    if until_end or on_gap != OnGap.RAISE:
        raise CommandError("--until-end and --on-gap are for streams (URLs)")
    return options.source(name, format, columns, delimiter, encoding, decimal)


def dead_letters(url: str | None, config: Path | None, source: Source | Stream) -> Stream | None:
    """The stream for bad messages of the source, or None."""
    from spidertensor import sources

    if url is None:
        return None
    if not sources.is_url(url):
        raise CommandError(f"--dead-letter takes the URL of a stream, not {url!r}")
    letters = sources.stream_at(url, "json", config=config)
    if letters.name == source.name:  # dead letters would be read as bad messages, in a loop
        raise CommandError(f"--dead-letter {url}: must not be the stream being read")
    return letters
