"""Checkpoints come back exactly, and nothing else comes back at all."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import re
import signal
import stat
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from forked import Spider
from spidertensor import checkpoint
from spidertensor.checkpoint import Checkpoint, CheckpointError, flatten, load, restore, save

posix = pytest.mark.skipif(os.name != "posix", reason="permissions, links and signals of POSIX")


class Pair(NamedTuple):
    mean: Any
    var: Any


class Empty(NamedTuple):
    pass


class Tree(NamedTuple):
    factors: Any
    weights: Any
    option: Any
    count: Any


def tree(rows: int = 0, weights: tuple[int, ...] = (2, 3)) -> Tree:
    return Tree(
        tuple(Pair(np.full((rows, 2), 1.5, np.float32), np.ones((rows, 2), np.float32)) for _ in range(2)),
        (np.arange(math.prod(weights), dtype=np.float32).reshape(weights),),
        Empty(),
        np.array(7, np.int64),
    )


def assert_same(got: Any, wanted: Any) -> None:
    """Type, structure, dtype, shape and every bit."""
    if isinstance(wanted, tuple | dict):
        assert type(got) is type(wanted)
        assert len(got) == len(wanted)
        if isinstance(wanted, dict):
            assert got.keys() == wanted.keys()
        for key in wanted if isinstance(wanted, dict) else range(len(wanted)):
            assert_same(got[key], wanted[key])
        return
    assert isinstance(got, np.ndarray)
    assert got.dtype == wanted.dtype.newbyteorder("=")
    assert got.dtype.isnative
    assert got.shape == wanted.shape
    assert got.tobytes() == wanted.astype(got.dtype).tobytes()
    assert got.flags.c_contiguous
    assert got.flags.writeable
    assert got.flags.owndata


def pack(header: Any, payload: bytes = b"", version: int = 2) -> bytes:
    """A container with a right checksum around any header: what an attacker would write."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text = text.ljust((len(text) + 20 + 63) // 64 * 64 - 20)
    body = struct.pack("<8sIQ", checkpoint.MAGIC, version, len(text)) + text + payload
    return body + hashlib.sha256(body).digest()


def record(**changes: Any) -> dict[str, Any]:
    return {"name": "model/a", "dtype": "<f4", "shape": [2], "offset": 0, "nbytes": 8} | changes


def header(*records: Any, **changes: Any) -> dict[str, Any]:
    return {"arrays": list(records), "sections": {"model": {}, "position": None}, "optional": []} | changes


def header_1(*records: Any, **changes: Any) -> dict[str, Any]:
    """The same of version 1."""
    return {"arrays": list(records), "config": {}, "position": None} | changes


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.spider"


# --- what is saved comes back ---

DTYPES = [np.dtype(code) for code in checkpoint.DTYPES] + [np.dtype(code) for code in (">f4", ">f8", ">i8")]
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)
VIEWS = (
    ARRAYS
    | ARRAYS.map(lambda array: array.T)
    | ARRAYS.map(lambda array: array[..., ::-1] if array.ndim else array)
)
TREES = st.recursive(
    VIEWS,
    lambda child: (
        st.lists(child, max_size=3).map(tuple)
        | st.builds(Pair, child, child)
        | st.builds(Empty)
        | st.just(())
    ),
    max_leaves=6,
)
# Characters include lone surrogates: file names that are not valid text.
TEXT = st.text(st.characters(exclude_categories=()))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda child: st.lists(child, max_size=3) | st.dictionaries(TEXT, child, max_size=3),
    max_leaves=8,
)
FEW = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.slow
@FEW
@given(TREES, st.dictionaries(TEXT, JSON, max_size=3), JSON)
def test_round_trip(tmp_path, state, config, position):
    file = tmp_path / "model"
    arrays, sections = flatten(state, "model"), {"model": config, "position": position}
    save(file, arrays, sections)
    first = file.read_bytes()
    loaded = load(file)
    assert_same(loaded.arrays, dict(sorted(arrays.items())))
    assert (loaded.sections, loaded.version) == (sections, 2)
    assert json.dumps(loaded.sections, sort_keys=True) == json.dumps(
        sections, sort_keys=True
    )  # 1 is not 1.0 or True
    assert_same(restore(state, loaded.arrays, "model"), state)
    save(file, dict(reversed(loaded.arrays.items())), dict(reversed(loaded.sections.items())))
    assert file.read_bytes() == first


def test_nan_and_signed_zero_in_arrays_keep_their_bits(file):
    special = np.array([0x7FF8000000000001, 0xFFF0000000000000, 0x8000000000000000, 1], np.uint64).view(
        np.float64
    )
    save(file, {"model/a": special}, {"model": {}})
    assert_same(load(file).arrays["model/a"], special)


def test_a_file_without_anything(file):
    save(file, {}, {})
    assert load(file) == Checkpoint({}, {}, 2)


def test_loaded_arrays_do_not_hold_each_other_or_the_file(file):
    save(file, {"model/a": np.zeros(3), "model/b": np.zeros(5)}, {"model": {}})
    arrays = load(file).arrays
    assert all(array.base is None for array in arrays.values())
    assert arrays["model/a"].nbytes == 24


def test_the_reader_in_the_documentation_reads(file):
    text = (Path(__file__).parents[2] / "docs" / "file-format.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code
    scope: dict[str, Any] = {}
    exec(code[1], scope)
    arrays, sections = flatten(tree(3), "model"), {"model": {"name": "π"}, "position": {"row": 5}}
    save(file, arrays, sections)
    found, found_sections = scope["read"](file)
    assert found_sections == sections
    assert {k: (a.dtype.str, list(a.shape), a.tobytes()) for k, a in arrays.items()} == found


def test_the_bytes_are_those_of_the_documentation(file):
    arrays = {"model/b": np.array([1, 2], ">i4"), "model/a": np.array([True])}
    save(file, arrays, {"position": [1.5], "model": {"z": 1, "k": "é"}}, optional=["position"])
    text = (
        b'{"arrays":[{"dtype":"|b1","name":"model/a","nbytes":1,"offset":0,"shape":[1]},'
        b'{"dtype":"<i4","name":"model/b","nbytes":8,"offset":64,"shape":[2]}],'
        b'"optional":["position"],"sections":{"model":{"k":"\\u00e9","z":1},"position":[1.5]}}'
    )
    assert file.read_bytes() == pack(text, b"\1" + bytes(63) + b"\1\0\0\0\2\0\0\0")


def test_memory_is_about_that_of_the_arrays(file):
    arrays = {"model/a": np.ones(1 << 20), "model/b": np.ones((1 << 10, 1 << 10), np.float32)}
    tracemalloc.start()
    try:
        save(file, arrays, {"model": {}})
        saving = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        load(file)
        loading = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert saving < 1 << 20
    assert loading < (12 << 20) + (3 << 20)


# --- what cannot be saved ---


@pytest.mark.parametrize(
    "array",
    [np.array([None]), np.zeros(2, np.float16), np.array(["x"]), np.zeros(1, "i4,f4"), np.zeros(1, complex)],
)
def test_other_dtypes_are_refused_by_name(file, array):
    with pytest.raises(TypeError, match="'model/x'"):
        save(file, {"model/x": array}, {"model": {}})
    assert not os.listdir(file.parent)


@pytest.mark.parametrize(
    ("config", "position", "error"),
    [
        ({"a": math.nan}, None, ValueError),
        ({}, [math.inf], ValueError),
        ({"a": object()}, None, TypeError),
        ({"a": np.int64(1)}, None, TypeError),
        ({}, "x" * checkpoint.HEADER_LIMIT, ValueError),
    ],
)
def test_what_is_not_json_is_refused_before_writing(file, config, position, error):
    save(file, {}, {"model": {"old": 1}})
    with pytest.raises(error):
        save(file, {}, {"model": config, "position": position})
    assert load(file).sections["model"] == {"old": 1}
    assert os.listdir(file.parent) == [file.name]


def test_a_name_must_be_a_string(file):
    with pytest.raises(ValueError, match="name"):
        save(file, {1: np.zeros(1)}, {"model": {}})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("arrays", "sections", "optional"),
    [
        ({"a": np.zeros(1)}, {"model": {}}, ()),
        ({"model/a": np.zeros(1)}, {}, ()),
        ({}, {"model": {}}, ["position"]),
        ({}, {"model": {}, "future": 1}, ()),
    ],
)
def test_what_could_not_be_read_is_not_written(file, arrays, sections, optional):
    with pytest.raises(CheckpointError, match="section"):
        save(file, arrays, sections, optional)
    assert not os.listdir(file.parent)


# --- accidents ---


@pytest.fixture
def small(file) -> bytes:
    save(file, flatten(tree(1), "model"), {"model": {"rank": 2}, "position": {"row": 9}})
    return file.read_bytes()


def test_every_truncation(file, small):
    for length in range(len(small)):
        file.write_bytes(small[:length])
        with pytest.raises(CheckpointError, match=re.escape(str(file))):
            load(file)
    file.write_bytes(small + b"\0")
    with pytest.raises(CheckpointError):
        load(file)
    file.write_bytes(small)
    load(file)


def test_every_bit_flip(file, small):
    assert 512 < len(small) < 2048
    with open(file, "r+b", buffering=0) as handle:
        for place, byte in enumerate(small):
            for bit in range(8):
                handle.seek(place)
                handle.write(bytes([byte ^ (1 << bit)]))
                with pytest.raises(CheckpointError):
                    load(file)
            handle.seek(place)
            handle.write(bytes([byte]))
    load(file)


def test_line_end_damage(file, small):
    for damaged in (small.replace(b"\r\n", b"\n"), small.replace(b"\n", b"\r\n")):
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="not a spidertensor checkpoint"):
            load(file)


@pytest.mark.parametrize(
    "content",
    [
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        b"PK\3\4" + bytes(100),
        b"user,item,rating\n1,2,3\n",
        b"{}",
        b"\x80\4N.",
    ],
)
def test_foreign_files(file, content):
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="not a spidertensor checkpoint"):
        load(file)


def test_random_bytes(file):
    rng = random.Random(0)
    for _ in range(300):
        noise = rng.randbytes(rng.randrange(300))
        for start in (b"", *(checkpoint.MAGIC + more for more in (b"", b"\1\0\0\0", b"\2\0\0\0"))):
            file.write_bytes(start + noise)
            with pytest.raises(CheckpointError):
                load(file)


def test_too_new_is_said_whatever_follows(file):
    for content in (pack(header(), version=4), struct.pack("<8sIQ", checkpoint.MAGIC, 4, 2**64 - 1)):
        file.write_bytes(content)
        message = r"newer version of spidertensor \(format 4\), this one reads up to 3"
        with pytest.raises(CheckpointError, match=message):
            load(file)
    file.write_bytes(pack(header(), version=0))
    with pytest.raises(CheckpointError, match="unknown format 0"):
        load(file)


def test_sections_of_later_versions(file):
    """An unknown section is an error that says so, unless it is optional: then it is not even read."""
    later = {"model": {"a": 1}, "position": 7, "journal": {"entries": 3}}
    records = (record(name="journal/marks"), record(offset=64))
    content = pack(header(*records, sections=later), bytes(72))
    message = (
        r"newer version .*'journal'.*this one reads calibration, classes, columns, committee, history, "
        "levels, model, noise, position"
    )
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        load(file)
    file.write_bytes(pack(header(*records, sections=later, optional=["journal"]), bytes(72)))
    loaded = load(file)
    assert loaded.sections == {"model": {"a": 1}, "position": 7}
    assert_same(loaded.arrays, {"model/a": np.zeros(2, np.float32)})


def test_a_large_optional_section_takes_no_memory(file, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECTIONS", {"model": 2, "histogram": 2})
    save(file, {"histogram": np.ones(1 << 20)}, {"model": {}, "histogram": None}, ["histogram"])
    assert load(file).arrays.keys() == {"histogram"}
    monkeypatch.undo()
    tracemalloc.start()
    try:
        assert load(file) == Checkpoint({}, {"model": {}}, 2)
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()


def test_version_1_is_read(file):
    content = header_1(record(name="state/a"), config={"a": 1}, position=[2])
    file.write_bytes(pack(content, bytes(8), version=1))
    loaded = load(file)
    assert_same(loaded.arrays, {"model/state/a": np.zeros(2, np.float32)})
    assert (loaded.sections, loaded.version) == ({"model": {"a": 1}, "position": [2]}, 1)
    for wrong in (header(), header_1(config=[]), header_1(more=1), header_1() | {"arrays": None}):
        refused(file, pack(wrong, version=1))
    refused(file, pack(header_1(), version=2))


def test_no_file_empty_file_folder_and_pipe(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing")
    (tmp_path / "empty").touch()
    with pytest.raises(CheckpointError, match="truncated: 0 bytes"):
        load(tmp_path / "empty")
    with pytest.raises(CheckpointError, match="not a regular file"):
        load(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(CheckpointError, match="not a regular file"):  # and does not wait for a writer
            load(tmp_path / "pipe")


# --- malice: the checksum is right, the header is not ---

HUGE = 2**62
HOSTILE = {
    "huge shape": header(record(shape=[HUGE], nbytes=4 * HUGE)),
    "huge shape, small nbytes": header(record(shape=[HUGE])),
    "product overflows to 0": header(record(shape=[2**32, 2**32], nbytes=0)),
    "product overflows to 8": header(record(shape=[2**63 + 1, 2])),
    "huge beside 0": header(record(shape=[0, HUGE, HUGE], nbytes=0)),
    "too large for an index, beside 0": header(record(shape=[0, 2**64], nbytes=0)),
    "1e4000 elements": header(record(shape=[10**4000], nbytes=4 * 10**4000)),
    "negative": header(record(shape=[-2], nbytes=-8)),
    "two negatives": header(record(shape=[-1, -2])),
    "bool in shape": header(record(shape=[2, True])),
    "float in shape": header(record(shape=[2.0])),
    "text in shape": header(record(shape=["2"])),
    "shape a number": header(record(shape=2)),
    "100 dimensions": header(record(shape=[1] * 99 + [2])),
    "product mismatch": header(record(shape=[3])),
    "nbytes float": header(record(nbytes=8.0)),
    "nbytes bool": header(record(dtype="|u1", shape=[1], nbytes=True)),
    "offset past the end": header(record(offset=64)),
    "offset negative": header(record(offset=-64)),
    "offset not aligned": header(record(shape=[1], nbytes=4, offset=4)),
    "offset huge": header(record(offset=2**70)),
    "offset bool": header(record(offset=False)),
    "overlap": header(record(), record(name="model/b")),
    "second past the end": header(record(), record(name="model/b", offset=64)),
    "dtype object": header(record(dtype="O", shape=[1])),
    "dtype |O": header(record(dtype="|O", shape=[1])),
    "dtype big-endian": header(record(dtype=">f4")),
    "dtype text": header(record(dtype="<U1")),
    "dtype structured": header(record(dtype=[["a", "<f4"]])),
    "dtype null": header(record(dtype=None)),
    "duplicate name": header(record(shape=[0], nbytes=0), record()),
    "name a number": header(record(name=1)),
    "name a list": header(record(name=[])),
    "no offset": header({k: v for k, v in record().items() if k != "offset"}),
    "one key too many": header(record(order="F")),
    "record a list": header([]),
    "arrays an object": header() | {"arrays": {"model/a": record()}},
    "arrays null": header() | {"arrays": None},
    "name of no section": header(record(name="a")),
    "name empty": header(record(name="")),
    "name begins with a slash": header(record(name="/model/a")),
    "name of an absent section": header(record(name="members/0/a")),
    "name begins like a section": header(record(name="models/a")),
    "sections a list": header(record(), sections=["model"]),
    "sections null": header(record(), sections=None),
    "no sections": {"arrays": [record()], "optional": []},
    "no optional": {"arrays": [record()], "sections": {"model": {}}},
    "optional a text": header(record(), optional="model"),
    "optional an object": header(record(), optional={"model": 1}),
    "optional numbers": header(record(), optional=[1]),
    "optional lists": header(record(), optional=[["model"]]),
    "optional of an absent section": header(record(), optional=["journal"]),
    "unknown section": header(record(), sections={"model": {}, "journal": 1}),
    "unknown section of a long name": header(record(), sections={"model": {}, "n" * 10**6: 1}),
    "unknown section that is not the optional one": header(
        record(), sections={"model": {}, "journal": 1, "members": 1}, optional=["journal"]
    ),
    "a header of version 1": header_1(record()),
    "unknown key": header(record(), more=1),
    "header a list": [],
    "header a number": 5,
    "NaN": header(record(), sections={"model": {"a": math.nan}}),
    "Infinity": header(record(), sections={"model": {}, "position": -math.inf}),
    "1e999": json.dumps(header(record(), sections={"model": "X"})).encode().replace(b'"X"', b"1e999"),
    "deep lists": b"[" * 1_000_000,
    "deep closed": json.dumps(header(record(), sections={"model": "X"}))
    .encode()
    .replace(b'"X"', b"[" * 10**6 + b"]" * 10**6),
    "deep objects": b'{"a":' * 500_000,
    "a million digits": b'{"a":' + b"9" * 1_000_000 + b"}",
    "a million arrays": b'{"sections":{},"optional":[],"arrays":[' + b"[]," * 1_000_000 + b"[]]}",
    "no JSON": b"hello",
    "nothing": b"",
    "two values": b"{} {}",
    "not UTF-8": b'{"a":"\xff"}',
    "UTF-16": json.dumps(header(record())).encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf" + json.dumps(header(record())).encode(),
}


def refused(file: Path, content: bytes, megabytes: int = 1) -> None:
    """`load` answers at once with the one error and takes no more memory than the bytes at hand explain."""
    file.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=re.escape(str(file))) as caught:
            load(file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (megabytes << 20) + 30 * len(content)
    assert len(str(caught.value)) < 1000 + len(str(file))


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_headers(file, case):
    # Payloads that the cases would fill if they were believed: none is refused only for its size.
    for payload in (0, 1, 8) if isinstance(HOSTILE[case], dict) else (8,):
        refused(file, pack(HOSTILE[case], bytes(payload)))


def test_arrays_fill_the_payload_exactly(file):
    for content, right in (
        (header(), 0),
        (header(record()), 8),
        (header(record(), record(name="model/b", offset=64)), 72),
    ):
        for payload in (0, 4, 7, 8, 9, 64, 71, 72, 73, 128):
            if payload != right:
                refused(file, pack(content, bytes(payload)))
        file.write_bytes(pack(content, bytes(right)))
        assert len(load(file).arrays) == len(content["arrays"])


def test_a_header_that_is_not_padded(file):
    text = json.dumps(header()).encode() + b" "
    body = struct.pack("<8sIQ", checkpoint.MAGIC, 2, len(text)) + text
    assert len(body) % 64
    refused(file, body + hashlib.sha256(body).digest())


def test_the_hostile_container_is_otherwise_fine(file):
    file.write_bytes(pack(header(record(), sections={"model": {"a": 1}}), bytes(8)))
    loaded = load(file)
    assert_same(loaded.arrays, {"model/a": np.zeros(2, np.float32)})
    assert loaded.sections == {"model": {"a": 1}}


@pytest.mark.parametrize("length", [0, 1, 43, 45, 200, 2**31, 2**32 + 44, 2**63, 2**64 - 1, 2**64 - 20])
def test_hostile_header_length(file, length):
    body = struct.pack("<8sIQ", checkpoint.MAGIC, 2, length) + b" " * 100
    refused(file, body + hashlib.sha256(body).digest())


def test_a_header_over_the_limit_is_not_read(file):
    text = json.dumps(header(sections={"position": "x" * checkpoint.HEADER_LIMIT})).encode()
    content = pack(text)
    file.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="header of"):
            load(file)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_truth_values_other_than_0_and_1(file):
    for payload, good in ((b"\0\1", True), (b"\0\2", False), (b"\xff\1", False)):
        file.write_bytes(pack(header(record(dtype="|b1", nbytes=2)), payload))
        if good:
            assert load(file).arrays["model/a"].tolist() == [False, True]
        else:
            refused(file, file.read_bytes())


@posix
def test_file_cut_while_it_is_read(file, monkeypatch):
    """An in-place writer between checksum and arrays: an error, not garbage from np.empty."""
    save(file, {"model/a": np.ones(1 << 16)}, {"model": {}})
    parse = checkpoint._parse

    def cut(*args):
        os.truncate(file, 4096)
        return parse(*args)

    monkeypatch.setattr(checkpoint, "_parse", cut)
    with pytest.raises(CheckpointError, match="truncated"):
        load(file)


# --- writing: the old file or the new one ---


@pytest.mark.parametrize("broken", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_and_nothing_else(file, monkeypatch, broken, error):
    save(file, {"model/a": np.ones(3)}, {"model": {"old": True}})
    before = file.read_bytes()

    def fail(*args, **kwargs):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, broken, fail)
        with pytest.raises(type(error)):
            save(file, {"model/a": np.zeros(3)}, {"model": {"old": False}})
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


def test_an_array_that_fails_half_way(file):
    save(file, {}, {"model": {"old": True}})

    class Breaks:
        calls = 0

        def __array__(self, dtype=None, copy=None):
            Breaks.calls += 1
            if Breaks.calls > 1:
                raise RuntimeError("device lost")
            return np.zeros(3)

    arrays: Any = {"model/a": np.ones(1000), "model/b": Breaks()}
    with pytest.raises(RuntimeError, match="device lost"):
        save(file, arrays, {"model": {}})
    assert load(file).sections == {"model": {"old": True}}
    assert os.listdir(file.parent) == [file.name]


def test_order_of_the_steps_that_make_it_durable(file, monkeypatch):
    steps = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(descriptor):
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        if kind == "file":  # all of it is there when it is flushed
            temporary = next(file.parent.glob(".*.tmp"))
            assert load(temporary).sections == {"model": {"a": 1}}
        steps.append(kind)
        fsync(descriptor)

    def watched_replace(source, target):
        assert os.path.dirname(source) == os.path.dirname(target)
        steps.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    save(file, {"model/a": np.ones(3)}, {"model": {"a": 1}})
    assert steps == ["file", "rename", "folder"] if os.name == "posix" else ["file", "rename"]


CHILD = """
import sys
import numpy as np
from spidertensor.checkpoint import save
contents = [({"model/a": np.full(n, n)}, {"model": {"n": n}}) for n in (30_000, 40_000)]
print("ready", flush=True)
while True:
    for arrays, sections in contents:
        save(sys.argv[1], arrays, sections)
"""


@pytest.mark.slow
@posix
def test_a_kill_at_any_moment_leaves_one_of_two_files(file):
    rng = random.Random(1)
    save(file, {"model/a": np.full(30_000, 30_000)}, {"model": {"n": 30_000}})
    seen = set()
    for number in range(200):
        if number >= 15 and len(seen) > 1:
            break
        with Spider(file, program=CHILD) as child:
            assert child.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0, 0.05))
            child.kill()
            assert child.wait() == -signal.SIGKILL  # it was still saving, and had not failed by itself
        loaded = load(file)
        n = loaded.sections["model"]["n"]
        assert np.array_equal(loaded.arrays["model/a"], np.full(n, n))
        seen.add(n)
        rest = {path.name for path in file.parent.iterdir()} - {file.name}
        assert all(re.fullmatch(r"\.model\.spider\.\d+\.[0-9a-f]{8}\.tmp", name) for name in rest)
    assert seen == {30_000, 40_000}


@posix
def test_permissions(file):
    old = os.umask(0o027)
    try:
        save(file, {}, {})
        assert stat.S_IMODE(file.stat().st_mode) == 0o640
        for mode in (0o600, 0o664, 0o444):
            file.chmod(mode)
            save(file, {}, {"model": {"mode": mode}})
            assert stat.S_IMODE(file.stat().st_mode) == mode
            assert load(file).sections == {"model": {"mode": mode}}
    finally:
        os.umask(old)


@posix
def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "data").mkdir()
    link, target = tmp_path / "link", tmp_path / "data" / "target"
    link.symlink_to(Path("data") / "target")
    for n in range(2):  # first the link hangs, then there is a file
        save(link, {}, {"model": {"n": n}})
        assert link.is_symlink()
        assert load(target) == load(link) == Checkpoint({}, {"model": {"n": n}})
    assert os.listdir(tmp_path / "data") == ["target"]


@posix
def test_only_files_are_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(FileExistsError, match="not a regular file"):
            save(tmp_path / name, {}, {})
    with pytest.raises(FileNotFoundError):
        save(tmp_path / "missing" / "file", {}, {})
    assert sorted(os.listdir(tmp_path)) == ["folder", "pipe"]
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)


def test_relative_and_long_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("plain", "é" * 120):
        save(name, {}, {"model": {"n": name}})
        assert load(name).sections == {"model": {"n": name}}


# --- between a state and names ---


def test_names():
    assert list(flatten(tree(), "state")) == [
        "state/factors/0/mean",
        "state/factors/0/var",
        "state/factors/1/mean",
        "state/factors/1/var",
        "state/weights/0",
        "state/count",
    ]
    assert list(flatten(((np.zeros(1),), Pair(np.zeros(1), ())))) == ["0/0", "1/mean"]
    assert flatten(()) == flatten(Empty(), "x") == {}
    one = np.zeros(2)
    assert flatten(one, "x")["x"] is one


@pytest.mark.parametrize("leaf", [None, 1.5, [np.zeros(1)], {"a": np.zeros(1)}])
def test_flatten_takes_arrays_only(leaf):
    with pytest.raises(TypeError, match="'s/0/mean'"):
        flatten((Pair(leaf, np.zeros(1)),), "s")


def test_restore_grows_what_had_no_rows():
    arrays = flatten(tree(5), "s")
    restored = restore(tree(0), arrays, "s")
    assert_same(restored, tree(5))
    restored.factors[0].mean[:] = 0
    restored.count[...] = 0
    unchanged = flatten(tree(5), "s")
    assert all(np.array_equal(arrays[name], unchanged[name]) for name in unchanged)  # nothing is shared


def test_restore_takes_over_what_it_can_use():
    mean = np.arange(6.0).reshape(2, 3).copy()
    taken = restore((np.zeros((2, 3)),) * 3, {"0": mean, "1": mean, "2": mean[:]}, takes_over=True)
    assert taken[0] is mean
    assert_same(taken, (mean,) * 3)
    assert not any(np.shares_memory(mean, each) for each in taken[1:])


def test_restore_grows_one_dimension_but_no_single_number():
    template = (np.zeros(0), np.zeros(()))
    back = checkpoint.restore(template, {"0": np.arange(3.0), "1": np.array(2.0)})
    assert back[0].tolist() == [0, 1, 2]
    assert back[1] == 2
    for wrong in ({"0": np.zeros((3, 1)), "1": np.array(2.0)}, {"0": np.zeros(3), "1": np.zeros(1)}):
        with pytest.raises(CheckpointError, match="has shape"):
            checkpoint.restore(template, wrong)


def test_restore_makes_arrays_native_and_contiguous():
    arrays = {
        "mean": np.asfortranarray(np.arange(6.0).reshape(2, 3)).astype(">f8", order="F"),
        "var": np.ones((3, 2)).T,
    }
    arrays["mean"].flags.writeable = False
    restored = restore(Pair(np.zeros((2, 3)), np.zeros((0, 3))), arrays)
    assert_same(restored, Pair(np.arange(6.0).reshape(2, 3), np.ones((2, 3))))


LEAF = {
    "missing": (np.zeros(2), {}, "'s/0' is missing"),
    "prefix is no name": (np.zeros(2), {"0": np.zeros(2)}, "'s/0' is missing"),
    "dtype": (np.zeros(2), {"s/0": np.zeros(2, np.float32)}, "dtype float32, this model needs float64"),
    "int for float": (np.zeros(2), {"s/0": np.zeros(2, np.int64)}, "dtype int64"),
    "more rows": (np.zeros((2, 3)), {"s/0": np.zeros((3, 3))}, r"shape \(3, 3\), this model needs \(2, 3\)"),
    "no rows": (np.zeros((2, 3)), {"s/0": np.zeros((0, 3))}, "shape"),
    "columns": (
        np.zeros((0, 3)),
        {"s/0": np.zeros((5, 4))},
        r"shape \(5, 4\), this model needs \('any', 3\)",
    ),
    "columns of none": (np.zeros((0, 3)), {"s/0": np.zeros((0, 4))}, "shape"),
    "0 columns do not grow": (np.zeros((2, 0)), {"s/0": np.zeros((2, 1))}, "shape"),
    "dimensions": (np.zeros((0, 3)), {"s/0": np.zeros(3)}, "shape"),
    "0-d for 1-d": (np.zeros(0), {"s/0": np.zeros(())}, "shape"),
    "1-d for 0-d": (np.zeros(()), {"s/0": np.zeros(1)}, "shape"),
    "left over": (np.zeros(2), {"s/0": np.zeros(2), "s/1": np.zeros(2)}, "no array 's/1'"),
    "deeper": (np.zeros(2), {"s/0/mean": np.zeros(2)}, "no array 's/0/mean'"),
}


@pytest.mark.parametrize("case", LEAF)
def test_restore_refuses(case):
    leaf, arrays, message = LEAF[case]
    with pytest.raises(CheckpointError, match=message):
        restore((leaf,), arrays, "s")


def test_restore_leaves_other_prefixes_alone():
    arrays = flatten((np.ones(2),), "s") | {"scale": np.ones(1), "nodes/0/ids": np.ones(1)}
    assert_same(restore((np.zeros(2),), arrays, "s"), (np.ones(2),))


def test_a_model_with_more_layers_is_another_model():
    with pytest.raises(CheckpointError, match="weights/1"):
        restore(tree(), flatten(tree()._replace(weights=(np.zeros((2, 3), np.float32),) * 2)))
