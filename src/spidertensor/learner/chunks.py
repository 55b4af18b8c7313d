"""Regroup chunks: into whole rounds of several workers, or into pieces of limited size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spidertensor.sources import Chunk


def in_rounds(
    chunks: Iterator[Chunk], whole: Callable[[int], int], at_least: Callable[[], int]
) -> Iterator[Chunk]:
    """Regroup rows so that every chunk but the last ends with a round.

    The model saved between two chunks then does not depend on how many rows were read at once.

    whole:    maps a number of rows to how many of them fill whole rounds
    at_least: returns how many rows the next chunk needs
    """
    rest = None
    for chunk in chunks:
        if chunk.quiet:
            yield chunk
            continue
        rest = chunk if rest is None else joined(rest, chunk)
        n = whole(len(rest.rows))
        if n and n >= at_least():
            full, rest = cut(rest, n)
            yield full
    if rest is not None:
        yield rest


def in_pieces(chunks: Iterator[Chunk], most: int) -> Iterator[Chunk]:
    """Split chunks into at most `most` rows: signals and checkpoints wait for the end of a chunk."""
    for chunk in chunks:
        while len(chunk.rows) > most:
            first, chunk = cut(chunk, most)
            yield first
        yield chunk


def first_in_two(chunks: Iterator[Chunk], n: int) -> Iterator[Chunk]:
    """Split the first chunk after n rows."""
    for chunk in chunks:
        if not chunk.quiet:
            yield from cut(chunk, n) if len(chunk.rows) > n else (chunk,)
            break
        yield chunk
    yield from chunks


def cut(chunk: Chunk, n: int) -> tuple[Chunk, Chunk]:
    """Split after the n-th good row; bad rows go to the side where their row number falls."""
    assert chunk.values is not None
    if n == len(chunk.rows):
        return chunk, chunk._replace(
            columns=[column[:0] for column in chunk.columns], values=chunk.values[:0], rows=chunk.rows[:0],
            bad=[], skipped=0, attributes=_sliced(chunk, slice(0, 0)),
        )  # fmt: skip
    end = int(chunk.rows[n - 1])
    first = chunk._replace(
        columns=[column[:n] for column in chunk.columns], values=chunk.values[:n], rows=chunk.rows[:n],
        bad=[each for each in chunk.bad if each.row <= end], end=end, last=None, skipped=0,
        attributes=_sliced(chunk, slice(n)),
    )  # fmt: skip
    rest = chunk._replace(
        columns=[column[n:] for column in chunk.columns], values=chunk.values[n:], rows=chunk.rows[n:],
        bad=[each for each in chunk.bad if each.row > end], attributes=_sliced(chunk, slice(n, None)),
    )  # fmt: skip
    return first, rest


def joined(a: Chunk, b: Chunk) -> Chunk:
    import numpy as np  # imported late: slow

    assert a.values is not None
    assert b.values is not None
    return b._replace(
        columns=[concatenated(*pair) for pair in zip(a.columns, b.columns, strict=True)],
        values=np.concatenate([a.values, b.values]),
        rows=np.concatenate([a.rows, b.rows]),
        bad=[*a.bad, *b.bad],
        place=b.place and (lambda row: (a if row <= a.end else b).place(row)),  # pyright: ignore
        skipped=a.skipped + b.skipped,
        attributes={name: concatenated(a.attributes[name], column) for name, column in b.attributes.items()},
    )


def _sliced(chunk: Chunk, part: slice) -> dict[str, Any]:
    return {name: column[part] for name, column in chunk.attributes.items()}


def concatenated(*parts: Any) -> Any:
    """Parts of a column as one."""
    import numpy as np

    same = len({part.dtype for part in parts}) == 1
    return np.concatenate(parts if same else [part.astype(object) for part in parts])
