"""A history that memory does not hold lies in files without a name, and is learned as if it did not."""

from __future__ import annotations

import errno
import os

import numpy as np
import pandas as pd
import pytest

import spidertensor.unnamed_file
from model_files import file_bytes
from spidertensor import SpiderRegressor
from spidertensor.estimator import arranged, collected
from spidertensor.estimator.collected import Collected
from spidertensor.estimator.times import NUMBER, Times
from spidertensor.method import Bags, Batch
from spidertensor.unnamed_file import UnnamedFile

SMALL = {"rank": 2, "hidden": (4,), "multilinear": 2, "batch_size": 64, "committee": 1, "passes": 2}
N = 1_500


@pytest.fixture
def small_memory(monkeypatch):
    """Everything goes to files, in chunks and buckets of a few hundred entries."""
    monkeypatch.setattr(collected, "IN_MEMORY", 0)
    monkeypatch.setattr(collected, "CHUNK_ENTRIES", 200)
    monkeypatch.setattr(arranged, "BUCKET_BYTES", 7_000)
    monkeypatch.setattr(arranged, "READ_ENTRIES", 256)


def entries(n: int = N) -> Batch:
    rng = np.random.default_rng(3)
    length = rng.integers(4, size=n)
    start = np.concatenate([[0], np.cumsum(length)])
    m = int(start[-1])
    bags = Bags(start, rng.integers(2, size=m), rng.integers(9, size=m), rng.random(m, np.float32))
    return Batch(rng.integers((30, 20), size=(n, 2)), np.arange(n) + 0.5, bags)


def collected_of(batch: Batch, time: np.ndarray | None = None, cut: int = 170) -> Collected:
    found = Collected()
    for first in range(0, len(batch.value), cut):
        last = min(first + cut, len(batch.value))
        bags = None if batch.bags is None else batch.bags.part(first, last)
        when = None if time is None else Times(time[first:last], NUMBER)
        found.add(batch.index[first:last], batch.value[first:last], bags, when)
    return found


def rows(found: arranged.Arranged, block: int = 333) -> list[tuple]:
    """All entries, one by one, read block by block."""
    listed = []
    for first in range(0, found.n_entries, block):
        batch = found.raw(first, min(first + block, found.n_entries))
        for i in range(len(batch.value)):
            own = None if batch.bags is None else [each.tolist() for each in batch.bags.part(i, i + 1)]
            listed.append((batch.index[i].tolist(), float(batch.value[i]), own))
    return listed


TIMES = {
    "numbers": np.random.default_rng(5).integers(40, size=N),
    "texts": np.array([f"2026-{each:02}" for each in np.random.default_rng(5).integers(12, size=N)]),
}


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("bags", [True, False])
def test_entries_in_a_file_are_sorted_as_in_memory(time, bags, small_memory, monkeypatch):
    """Ties keep the order in which they came."""
    batch = entries() if bags else entries()._replace(bags=None)
    in_file = collected_of(batch, TIMES[time]).arranged(0, shuffled=True)
    assert isinstance(in_file, arranged.InFile)
    monkeypatch.setattr(collected, "IN_MEMORY", 2**26)
    in_memory = collected_of(batch, TIMES[time]).arranged(0, shuffled=True)
    assert isinstance(in_memory, arranged.InMemory)
    assert rows(in_file) == rows(in_memory)
    np.testing.assert_array_equal(in_file.sample(), in_memory.sample())


def test_entries_in_a_file_are_shuffled_however_they_were_cut(small_memory):
    batch = entries()
    first, again, other = (
        rows(collected_of(batch, cut=cut).arranged(seed, shuffled=True))
        for seed, cut in ((0, 170), (0, N), (1, N))
    )
    assert first == again != other
    in_order = rows(collected_of(batch).arranged(0, shuffled=False))
    assert sorted(first, key=lambda each: each[1]) == in_order
    assert first != in_order


def test_all_orders_are_equally_likely(small_memory, monkeypatch):
    """Where three entries in two buckets come to lie, in 6,000 draws: each order about 1,000 times."""
    monkeypatch.setattr(arranged, "BUCKET_BYTES", 30)
    batch, counts = entries(3)._replace(bags=None), {}
    for seed in range(6_000):
        order = tuple(each[1] for each in rows(collected_of(batch).arranged(seed, shuffled=True)))
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert all(abs(n - 1_000) < 5 * np.sqrt(1_000 * 5 / 6) for n in counts.values())


def table() -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    user, movie = rng.integers(30, size=N), rng.integers(20, size=N)
    X = {"user": [f"u{each}" for each in user], "movie": movie, "when": rng.integers(700, size=N)}
    return pd.DataFrame(X), np.sin(user) + np.cos(movie) + 0.2 * rng.normal(size=N)


def test_what_is_learned_does_not_depend_on_where_a_history_in_time_lies(small_memory, monkeypatch):
    X, y = table()
    in_file = file_bytes(SpiderRegressor(**SMALL, time="when").fit(X, y))
    monkeypatch.setattr(collected, "IN_MEMORY", 2**26)
    assert file_bytes(SpiderRegressor(**SMALL, time="when").fit(X, y)) == in_file


def test_a_shuffled_history_in_a_file_is_learned_as_well(small_memory, monkeypatch):
    X, y = table()
    X, errors = X[["user", "movie"]], []
    for size in (0, 2**26):
        monkeypatch.setattr(collected, "IN_MEMORY", size)
        model = SpiderRegressor(**SMALL).fit(X, y)
        assert model.n_entries_ == N
        errors.append(model.history_["errors"][-1])
    assert errors[0] == pytest.approx(errors[1], rel=0.2)
    assert errors[0] < 0.5 * y.std()


# --- the files ------------------------------------------------------------------------------------


def test_a_file_has_no_name_and_only_its_owner_may_read_it(tmp_path):
    file = UnnamedFile(str(tmp_path))
    for array in (np.arange(5), np.zeros((3, 2), np.float32)):
        assert file.append(array) == file.size - array.nbytes
    np.testing.assert_array_equal(file.read(8, 3, np.int64), [1, 2, 3])
    file.write(8, np.array([7]))
    np.testing.assert_array_equal(file.read(0, 5, np.int64), [0, 7, 2, 3, 4])
    assert not list(tmp_path.iterdir())
    assert os.fstat(file._file.fileno()).st_mode & 0o777 == 0o600


def test_a_disk_without_room_is_a_clear_error(tmp_path, monkeypatch):
    with pytest.raises(OSError, match=r"several passes need 1073741824\.0 GiB in .*passes=1"):
        UnnamedFile(str(tmp_path), wanted=2**60)
    file = UnnamedFile(str(tmp_path))

    class Full:
        def seek(self, at):
            pass

        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    file._file = Full()
    with pytest.raises(OSError, match=r"need more room in .*passes=1: No space left") as caught:
        file.append(np.zeros(3))
    assert caught.value.errno == errno.ENOSPC


def test_a_fit_that_finds_no_room_changes_nothing(small_memory, monkeypatch):
    X, y = table()
    model = SpiderRegressor(**SMALL).fit(X, y)
    before = file_bytes(model)

    def full(self, at, array):
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(spidertensor.unnamed_file.UnnamedFile, "write", full)
    with pytest.raises(OSError, match="no room"):
        model.fit(X, y)
    assert file_bytes(model) == before


@pytest.mark.parametrize("in_a_file", [True, False])
def test_some_random_entries_come_last(in_a_file, request):
    """The others stay in the order of time, and so do these, however they are read."""
    if in_a_file:
        request.getfixturevalue("small_memory")
    batch, time = entries(), np.random.default_rng(5).permutation(N)
    sorted_ = collected_of(batch, time).arranged(0, shuffled=False)
    last = arranged.RandomLast(sorted_, 120, 7)
    parts = [last.raw(at, min(at + 301, N)) for at in range(0, N, 301)]
    values = np.concatenate([part.value for part in parts])
    rows = np.rint(values - 0.5).astype(int)
    assert sorted(rows) == list(range(N))
    assert (np.diff(time[rows[:-120]]) > 0).all()
    assert (np.diff(time[rows[-120:]]) > 0).all()
    assert time[rows[-120:]].mean() < 0.7 * N  # not the latest
    assert np.array_equal(np.concatenate([part.index for part in parts]), batch.index[rows])
    for part, at in zip(parts, range(0, N, 301), strict=True):
        for entry, row in enumerate(rows[at : at + 301]):
            mine, own = part.bags.part(entry, entry + 1), batch.bags.part(row, row + 1)
            assert all(np.array_equal(*both) for both in zip(mine, own, strict=True))
