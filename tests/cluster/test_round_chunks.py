"""Rows of a file in chunks that end where the rounds of several workers do."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from spidertensor.cluster.rounds import Rounds
from spidertensor.learner.chunks import in_rounds
from spidertensor.sources import BadRow, Chunk

ROUNDS = Rounds(2, 64)
BAD = (5, 64, 65, 200, 701)  # numbers of rows


def chunks(cuts: list[int]):
    """Rows 1 to 700, the bad ones among them, as a source would give them."""
    for start, end in pairwise([0, *cuts]):
        rows = np.array([row for row in range(start + 1, end + 1) if row not in BAD], np.int64)
        bad = [BadRow(row, "bad", {}) for row in BAD if start < row <= end]
        yield Chunk([rows * 10], rows.astype(float), rows, bad, end, end / 701, last=f"line {end}")
        yield Chunk([], None, rows[:0], [], end, None, quiet=True)


def learned(cuts: list[int], at_least: int = 1):
    """What is learned at a time: the rows, the bad rows and the end of each chunk."""
    n, found = 0, []

    def whole(k: int) -> int:
        return ROUNDS.whole(n, k)

    for chunk in in_rounds(chunks(cuts), whole, lambda: at_least):
        if not chunk.quiet:
            found.append((chunk.rows.tolist(), [each.row for each in chunk.bad], chunk.end, chunk.last))
            np.testing.assert_array_equal(chunk.columns[0], chunk.rows * 10)
            np.testing.assert_array_equal(chunk.values, chunk.rows)
            n += len(chunk.rows)
    return found


@pytest.mark.parametrize("cuts", [[701], [10, 20, 300, 701], [*range(7, 701, 7), 701], [64, 128, 701]])
def test_chunks_end_where_rounds_end(cuts):
    found = learned(cuts)
    n = 0
    for rows, bad, end, _ in found[:-1]:
        assert ROUNDS.whole(n, len(rows)) == len(rows) > 0
        assert rows[-1] <= end
        assert all(row <= end for row in bad)
        n += len(rows)
    assert [row for rows, *_ in found for row in rows] == [row for row in range(1, 702) if row not in BAD]
    assert [row for _, bad, *_ in found for row in bad] == list(BAD)
    assert found[-1][2:] == (701, "line 701")


def test_a_chunk_that_is_cut_ends_at_its_last_row_whose_line_is_not_known():
    (rows, _, end, last), *_ = learned([300, 701])
    assert (end, last) == (rows[-1], None)


def test_the_first_chunk_can_be_asked_to_be_long():
    """From its values the scale is taken."""
    (rows, *_), *_ = learned([70, 90, 701], at_least=256)
    assert len(rows) >= 256
