"""Bins: turn a column of numbers into a mode.

A rule is a text:

    quantiles:20    20 bins, each with an equal share of the first 10,000 numbers
    width:0.5       bins of this width: 0 to 0.5, 0.5 to 1, ...
    edges:1,5,10    below 1, 1 to 5, 5 to 10, from 10

A number on an edge belongs to the bin above it. The id of a bin is a text such as "5 to 10", readable in a
list of recommendations and never confused with a number. Quantiles are fixed once known, and must be saved
with the model (`to_json`): otherwise the same number could later get another id.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.missing import MISSING_ID
from spidertensor.sources.source import Chunk, SourceError

QUANTILE_NUMBERS = 10_000  # how many of the first numbers determine the quantiles
MAX_BINS = 10_000
MAX_QUIET_CHUNKS = 5  # in a row, after which a pipe need not deliver as many first rows as wanted


class Bins:
    """edges: None until the quantiles are known; taken: how many numbers they were computed from here"""

    def __init__(self, rule: str, edges: Sequence[float] | None = None) -> None:
        """SourceError if the rule is invalid or does not fit the edges."""
        kind, _, text = rule.partition(":")
        self.rule, self.n, self.width, self.taken = rule, 0, 0.0, 0
        try:
            if kind == "quantiles":
                self.n = int(text)
                possible = 2 <= self.n <= MAX_BINS
            elif kind == "width":
                self.width = float(text)
                possible, edges = 0 < self.width < math.inf, ()
            elif kind == "edges":
                edges = [float(each) for each in text.split(",")]
                possible = True
            else:
                possible = False
        except ValueError:
            possible = False
        rising = edges is None or all(a < b for a, b in pairwise([-math.inf, *edges, math.inf]))
        if not (possible and rising and len(edges or ()) < MAX_BINS):
            raise SourceError(
                f"bins are quantiles:20 (2 to {MAX_BINS:,}), width:0.5 or edges:1,5,10 (rising), "
                f"not {rule!r:.80}"
            )
        self.edges = None if edges is None else tuple(map(float, edges))

    def freeze(self, numbers: NDArray[np.float64]) -> None:
        """Compute the quantiles from these numbers, if they are not known yet."""
        if self.edges is None:
            numbers = numbers[~np.isnan(numbers)][:QUANTILE_NUMBERS]
            self.taken = len(numbers)
            levels = np.arange(1, self.n) / self.n
            # edges taken from the numbers have short names, and equal numbers stay together
            edges = np.quantile(numbers, levels, method="inverted_cdf") if len(numbers) else []
            self.edges = tuple(np.unique(edges).tolist())

    def ids(self, numbers: NDArray[np.float64]) -> NDArray[Any]:
        """The bin of each number; NaN is a missing id."""
        assert self.edges is not None
        if self.width:
            # + 1e-9: in floating point 0.3 / 0.1 is a little less than 3
            places, codes = np.unique(np.floor(numbers / self.width + 1e-9), return_inverse=True)
            names = [f"{k * self.width:.12g} to {(k + 1) * self.width:.12g}" for k in places.tolist()]
        else:
            codes = np.searchsorted(self.edges, numbers, side="right")
            names = self._names()
        ids = np.array([*names, None], dtype=object)[codes]
        for place in np.flatnonzero(np.isnan(numbers)).tolist():
            ids[place] = MISSING_ID
        return ids

    def _names(self) -> list[str]:
        edges = [
            repr(edge).removesuffix(".0") for edge in self.edges or ()
        ]  # repr is exact: names are distinct
        if not edges:
            return ["any"]
        inner = [f"{low} to {high}" for low, high in pairwise(edges)]
        return [f"below {edges[0]}", *inner, f"from {edges[-1]}"]

    def to_json(self) -> dict[str, Any]:
        return {"rule": self.rule, "edges": None if self.edges is None else list(self.edges)}


def from_json(stored: Any) -> Bins | None:
    """The inverse of `to_json`; None stays None. SourceError for anything else, since files are untrusted."""
    match stored:
        case None:
            return None
        case {"rule": str(rule), "edges": list(edges)} if all(type(each) in (int, float) for each in edges):
            return Bins(rule, edges)
    raise SourceError("these are not bins")


def binned(chunks: Iterator[Chunk], bins: Sequence[Bins | None]) -> Iterator[Chunk]:
    """Replace the numbers in chunks by the ids of their bins.

    While quantiles are unknown, chunks are held back until there are QUANTILE_NUMBERS rows, or the source
    ends or stays quiet: how much arrives at once must not change the bins.
    """
    held: list[Chunk] = []
    known = all(each is None or each.edges is not None for each in bins)
    n = quiet = 0
    for chunk in chunks:
        if known:
            yield _with_ids(chunk, bins)
            continue
        quiet = quiet + 1 if chunk.quiet else 0
        if not chunk.quiet:
            held.append(chunk)
            n += len(chunk.rows)
        if n >= QUANTILE_NUMBERS or (n and quiet >= MAX_QUIET_CHUNKS):
            yield from _frozen(held, bins)
            known = True
        elif chunk.quiet:
            yield chunk
    if not known:
        yield from _frozen(held, bins)


def _frozen(held: list[Chunk], bins: Sequence[Bins | None]) -> Iterator[Chunk]:
    if any(len(chunk.rows) for chunk in held):
        for mode, each in enumerate(bins):
            if each is not None:
                each.freeze(np.concatenate([chunk.columns[mode] for chunk in held]))
        yield from (_with_ids(chunk, bins) for chunk in held)
    else:
        yield from held


def _with_ids(chunk: Chunk, bins: Sequence[Bins | None]) -> Chunk:
    columns = zip(bins, chunk.columns, strict=False)  # a quiet chunk has no columns
    return chunk._replace(columns=[column if each is None else each.ids(column) for each, column in columns])
