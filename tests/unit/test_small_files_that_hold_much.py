"""Files of some kilobytes that would take gigabytes: batches are bounded by what they take in memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from spidertensor.sources import SourceError, read, source_by_name

ROWS = 1 << 16


@pytest.fixture
def pool():
    """The memory of Arrow, counted from here on."""
    before = pa.default_memory_pool()
    own = pa.proxy_memory_pool(before)
    pa.set_memory_pool(own)
    yield own
    pa.set_memory_pool(before)


def written(path, *, compression="zstd", **columns: pa.Array) -> str:
    table = pa.table({"user": [1] * ROWS, "movie": [1] * ROWS, "rating": [1.0] * ROWS} | columns)
    parquet.write_table(table, path, compression=compression, store_schema=False)
    return str(path)


def text(n: int) -> pa.Array:
    """Very long, and the same in all rows."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), ["a" * n])


def lists(values: pa.Array, n: int) -> pa.Array:
    offsets = pa.array(range(0, n * ROWS + 1, n), pa.int32())
    return pa.ListArray.from_arrays(offsets, values)


def test_one_long_text_in_all_rows(tmp_path, pool):
    path = written(tmp_path / "a.parquet", user=text(56_000))
    assert (tmp_path / "a.parquet").stat().st_size < 2000
    found = [(chunk.rows[0], chunk.end, set(map(len, chunk.columns[0]))) for chunk in rows_of(path)]
    assert [first for first, _, _ in found] == [1, *(end + 1 for _, end, _ in found[:-1])]
    assert found[-1][1] == ROWS
    assert set.union(*(lengths for _, _, lengths in found)) == {56_000}
    assert pool.max_memory() < 300 << 20


@pytest.mark.slow
@pytest.mark.parametrize("of", ["numbers", "texts"])
def test_long_lists(tmp_path, pool, of):
    tags = lists(pa.array(np.full(200 * ROWS, 7)), 200) if of == "numbers" else lists(text(5_000), 1)
    path = written(tmp_path / "a.parquet", tags=tags)
    del tags
    before = pool.bytes_allocated()
    found = [len(chunk.attributes["tags"][0]) for chunk in rows_of(path, attributes=["tags"])]
    assert set(found) == {200 if of == "numbers" else 1}
    assert pool.max_memory() - before < 250 << 20
    assert len(found) > 1


def rows_of(path: str, **more):
    return read(source_by_name(path), ["user", "movie"], "rating", **more)


def test_ids_that_share_a_dictionary_are_those_that_do_not(tmp_path):
    texts = ["a", None, "", "b", "a"] * 100
    columns = {"user": pa.array(texts), "movie": pa.array(texts).dictionary_encode(), "rating": [1.0] * 500}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=7)
    found = list(rows_of(str(tmp_path / "a.parquet"), missing="skip"))
    for mode in (0, 1):
        ids = [each for chunk in found for each in chunk.columns[mode].tolist()]
        assert ids == [each for each in texts if each is not None]


def test_a_line_of_absurd_length(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"user": [' + "[]," * 3_000_000 + "[]]}\n")
    with pytest.raises(SourceError, match="a line of more than 8 MiB: is this a text file"):
        list(rows_of(str(tmp_path / "a.jsonl")))
