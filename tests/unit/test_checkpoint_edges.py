"""The edges of the file format: the smallest arrays, and a file that shrinks while it is read."""

from __future__ import annotations

import io
import logging

import numpy as np
import pytest

from spidertensor import checkpoint
from spidertensor.checkpoint import CheckpointError, load, save


@pytest.mark.parametrize("n", [0, 1, 2, 63, 64, 65])
def test_arrays_of_few_bytes(tmp_path, n):
    array = np.arange(n, dtype=np.uint8)
    save(tmp_path / "a", {"model/a": array}, {"model": {}})
    assert load(tmp_path / "a").arrays["model/a"].tolist() == array.tolist()


@pytest.mark.parametrize("extra", [0, 1])
def test_arrays_around_the_size_that_is_read_at_once(tmp_path, monkeypatch, extra):
    monkeypatch.setattr(checkpoint, "_CHUNK_BYTES", 64)
    array = np.arange(128 + extra, dtype=np.uint8)
    save(tmp_path / "a", {"model/a": array}, {"model": {}})
    assert np.array_equal(load(tmp_path / "a").arrays["model/a"], array)


def test_a_file_that_ends_earlier_than_its_size_said(tmp_path):
    save(tmp_path / "a", {"model/a": np.arange(1000)}, {"model": {}})
    data = (tmp_path / "a").read_bytes()
    handle = io.BufferedReader(io.BytesIO(data[:-4000]))  # pyright: ignore[reportArgumentType]
    with pytest.raises(CheckpointError, match="truncated while it was read"):
        checkpoint._verified_header(handle, len(data))


def test_saving_and_loading_are_logged_with_the_size(tmp_path, caplog):
    with caplog.at_level(logging.DEBUG, "spidertensor.checkpoint"):
        save(tmp_path / "a", {"model/a": np.arange(3)}, {"model": {}})
        load(tmp_path / "a")
    size = (tmp_path / "a").stat().st_size
    assert caplog.messages == [f"{done} {tmp_path / 'a'}, {size} bytes" for done in ("saved", "loaded")]
