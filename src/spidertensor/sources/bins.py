"""Numbers as ids: a column of numbers becomes a mode of bins.

A rule is a text:

    quantiles:20    20 bins with equally many of the first 10,000 numbers each
    width:0.5       bins of this width: 0 to 0.5, 0.5 to 1, ...
    edges:1,5,10    below 1, 1 to 5, 5 to 10, from 10

A number on an edge belongs to the bin above it. The id of a bin is a text that says what is in it, such as
"5 to 10": it tells something in a list of recommendations, and no number is taken for it. Once quantiles are
known they stay: whoever saves a model has to keep them (`to_json`), or the same number would later be another
id.
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

SAMPLE = 10_000  # numbers from which quantiles are taken
MOST = 10_000  # bins
PATIENCE = 5  # times that a pipe is quiet before fewer first rows than wanted must do


class Bins:
    """edges: None as long as the quantiles are not known; taken: of how many numbers they were taken here."""

    def __init__(self, rule: str, edges: Sequence[float] | None = None) -> None:
        """SourceError if the rule is not one, or the edges cannot be those of the rule."""
        kind, _, text = rule.partition(":")
        self.rule, self.n, self.width, self.taken = rule, 0, 0.0, 0
        try:
            if kind == "quantiles":
                self.n = int(text)
                possible = 2 <= self.n <= MOST
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
        if not (possible and rising and len(edges or ()) < MOST):
            raise SourceError(
                f"bins are quantiles:20 (2 to {MOST:,}), width:0.5 or edges:1,5,10 (rising), not {rule!r:.80}"
            )
        self.edges = None if edges is None else tuple(map(float, edges))

    def freeze(self, numbers: NDArray[np.float64]) -> None:
        """Take the quantiles of these numbers, if they are not known."""
        if self.edges is None:
            numbers = numbers[~np.isnan(numbers)][:SAMPLE]
            self.taken = len(numbers)
            levels = np.arange(1, self.n) / self.n
            # edges that are among the numbers have short names, and many equal numbers stay together
            edges = np.quantile(numbers, levels, method="inverted_cdf") if len(numbers) else []
            self.edges = tuple(np.unique(edges).tolist())

    def ids(self, numbers: NDArray[np.float64]) -> NDArray[Any]:
        """The bin of each number; NaN is a missing id."""
        assert self.edges is not None
        if self.width:
            # the small addition: 0.3 / 0.1 is a little less than 3
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
        edges = [repr(edge).removesuffix(".0") for edge in self.edges or ()]  # exact: no two are the same
        if not edges:
            return ["any"]
        inner = [f"{low} to {high}" for low, high in pairwise(edges)]
        return [f"below {edges[0]}", *inner, f"from {edges[-1]}"]

    def to_json(self) -> dict[str, Any]:
        return {"rule": self.rule, "edges": None if self.edges is None else list(self.edges)}


def from_json(stored: Any) -> Bins | None:
    """The inverse of `to_json`, and None of None. SourceError for anything else: a file may be anybody's."""
    match stored:
        case None:
            return None
        case {"rule": str(rule), "edges": list(edges)} if all(type(each) in (int, float) for each in edges):
            return Bins(rule, edges)
    raise SourceError("these are no bins")


def binned(chunks: Iterator[Chunk], bins: Sequence[Bins | None]) -> Iterator[Chunk]:
    """Chunks with the ids of bins where they have numbers.

    As long as quantiles are not known, chunks are held back until there are SAMPLE rows, or until the source
    has ended or has been quiet for long: how much comes at once must not change the bins.
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
        if n >= SAMPLE or (n and quiet >= PATIENCE):
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
