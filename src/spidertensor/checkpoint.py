"""File format for a complete state: open, versioned, with a checksum, written atomically, without pickle.

docs/file-format.md describes the bytes. A file consists of named sections, each with a JSON value and the
arrays whose names begin with the section's name. `flatten` turns a state (nested tuples and NamedTuples of
arrays) into named arrays, and `restore` reverses this; neither knows what a state means.

`load` raises CheckpointError for any invalid content, and OSError if the file cannot be opened.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import stat
import struct
from collections.abc import Collection, Iterator, Mapping
from io import BufferedReader
from typing import Any, NamedTuple, TypeVar

import numpy as np

from spidertensor.faults import Fault
from spidertensor.writing import naming, replacing

FORMAT_VERSION = 3  # the newest; earlier versions can be read
# Known to this version of the package, with the format version that a file with such a section has
SECTIONS = {
    "model": 2, "committee": 2, "classes": 2, "position": 2, "columns": 3, "history": 2, "calibration": 2,
    "noise": 2, "levels": 3, "tally": 2,
}  # fmt: skip
MAGIC = b"\x89SPT\r\n\x1a\n"  # as in PNG: not text, and changed by transfers that convert line ends
DTYPES = ("<f4", "<f8", "<i4", "<i8", "<u4", "<u8", "|u1", "|b1")
ALIGN = 64  # bytes
# Parsed JSON takes up to 30 times the memory of its text; the limit guards against hostile headers.
HEADER_LIMIT = 4 << 20
MAX_NDIM = 32  # numpy 1; numpy 2 has 64

_log = logging.getLogger(__name__)
_FIXED = struct.Struct("<8sIQ")  # magic, version, length of the header
_DIGEST_BYTES = hashlib.sha256().digest_size
_CHUNK_BYTES = 1 << 20

T = TypeVar("T")


class CheckpointError(Fault, ValueError):
    """An unusable checkpoint: truncated, damaged, foreign, too new, or of another model."""


class Checkpoint(NamedTuple):
    arrays: dict[str, np.ndarray]
    sections: dict[str, Any]
    version: int = 2  # format version of the file


def save(
    path: str | os.PathLike[str],
    arrays: Mapping[str, np.ndarray],
    sections: Mapping[str, Any],
    optional: Collection[str] = (),
) -> None:
    """Write or replace `path`; a kill at any time leaves either the old file or the new one.

    Sections are JSON: tuples are read back as lists and keys as strings; NaN and infinity raise ValueError.
    An array's name starts with the name of its section and a "/". The same content gives the
    same bytes. Links and permissions: see `replacing`.

    optional: sections that a reader may ignore if unknown
    """
    header, offsets = _header(arrays, sections, optional)
    digest = hashlib.sha256()
    with replacing(path) as handle:
        for part in _parts(_version(sections), header, arrays, offsets):
            digest.update(part)
            handle.write(part)
        handle.write(digest.digest())
        size = handle.tell()
    _log.debug("saved %s, %d bytes", os.fspath(path), size)


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """Read and check a file; takes memory of its size plus a bounded amount.

    Unknown sections are ignored if optional, else an error.
    """
    try:
        # Check before opening, because opening a pipe would wait for a writer.
        _check(stat.S_ISREG(os.stat(path).st_mode), "not a regular file")
        with naming(path), open(path, "rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            version, header = _verified_header(handle, size)
            start = _FIXED.size + len(header)
            records, sections = _parse(version, header, size - start - _DIGEST_BYTES)
            arrays = {name: _read(handle, start, record) for name, record in records.items()}
    except CheckpointError as error:
        raise error.but(reason=f"{os.fspath(path)}: {error.reason}") from error.__cause__
    _log.debug("loaded %s, %d bytes", os.fspath(path), size)
    return Checkpoint(arrays, sections, version)


def flatten(tree: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """The arrays of nested tuples and NamedTuples, named by field and position, such as "factors/0/mean".

    Arrays are not copied. Empty tuples yield no names; `restore` takes them from its template.
    """
    if isinstance(tree, tuple):
        children = zip(_names(tree, prefix), tree, strict=True)
        return {key: leaf for name, child in children for key, leaf in flatten(child, name).items()}
    if not hasattr(tree, "dtype"):
        raise TypeError(f"{prefix!r} is a {type(tree).__name__}, not an array or a tuple of arrays")
    return {prefix: np.asarray(tree)}


def restore(
    template: T, arrays: Mapping[str, np.ndarray], prefix: str = "", *, takes_over: bool = False
) -> T:
    """The structure of `template` with arrays of a file, as new writable C-contiguous native arrays.

    takes_over: nobody else uses the arrays, so those that are such already are not copied

    Names, dtypes and shapes must match the template, with no name under `prefix` missing or left over.
    Exception: where the template has 0 rows (a growing array before any node), the file may have any
    number of rows. The caller checks that arrays that grow together have equally many.
    """
    inside = f"{prefix}/" if prefix else ""
    extra = {name for name in arrays if name.startswith(inside)} - flatten(template, prefix).keys()
    _check(not extra, f"this model has no array {min(extra, default='')!r:.80}")
    return _rebuild(template, arrays, prefix, set() if takes_over else None)


def _rebuild(template: Any, arrays: Mapping[str, np.ndarray], prefix: str, taken: set[int] | None) -> Any:
    """taken: identities of the arrays that were taken over; None: all are copied"""
    if isinstance(template, tuple):
        names = _names(template, prefix)
        children = [_rebuild(child, arrays, name, taken) for name, child in zip(names, template, strict=True)]
        return type(template)(*children) if hasattr(template, "_fields") else tuple(children)
    _check(prefix in arrays, f"array {prefix!r} is missing")
    leaf, stored = np.asarray(template), np.asarray(arrays[prefix])
    dtype = leaf.dtype.newbyteorder("=")
    found = stored.dtype.newbyteorder("=")
    _check(found == dtype, f"array {prefix!r} has dtype {found}, this model needs {dtype}")
    grows = leaf.ndim > 0 and leaf.shape[0] == 0
    same = stored.ndim == leaf.ndim and stored.shape[grows:] == leaf.shape[grows:]
    needed = ("any", *leaf.shape[1:]) if grows else leaf.shape
    _check(same, f"array {prefix!r} has shape {stored.shape}, this model needs {needed}")
    usable = stored.flags.carray and stored.flags.owndata and stored.dtype.isnative
    if taken is None or not usable or id(stored) in taken:  # two names may stand for one array
        return np.array(stored, dtype, order="C")
    taken.add(id(stored))
    return stored


def _names(tree: tuple[Any, ...], prefix: str) -> list[str]:
    keys = getattr(tree, "_fields", range(len(tree)))
    return [f"{prefix}/{key}" if prefix else str(key) for key in keys]


def _check(condition: bool, reason: str) -> None:
    if not condition:
        raise CheckpointError(reason)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGN) * ALIGN


# --- writing ---


def _header(
    arrays: Mapping[str, np.ndarray], sections: Mapping[str, Any], optional: Collection[str]
) -> tuple[bytes, dict[str, int]]:
    records, end = [], 0
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        dtype = array.dtype.newbyteorder("<").str
        if dtype not in DTYPES:
            raise TypeError(f"array {name!r} has dtype {array.dtype}; supported are {', '.join(DTYPES)}")
        offset = _aligned(end)
        end = offset + array.nbytes
        records.append(
            {"name": name, "dtype": dtype, "shape": array.shape, "offset": offset, "nbytes": array.nbytes}
        )
    content = {"arrays": records, "optional": sorted(optional), "sections": dict(sections)}
    # ASCII with escapes can also encode lone surrogates, as in file names that are not valid text.
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    header = text.ljust(_aligned(_FIXED.size + len(text)) - _FIXED.size)
    if len(header) > HEADER_LIMIT:
        raise ValueError(f"the sections take {len(header)} bytes; the limit is {HEADER_LIMIT}")
    _parse(_version(sections), header, end)  # never write what `load` would reject
    return header, {record["name"]: record["offset"] for record in records}


def _version(sections: Mapping[str, Any]) -> int:
    """The oldest format that has these sections: older programs can read what they know."""
    return max((SECTIONS.get(name, 2) for name in sections), default=2)


def _parts(
    version: int, header: bytes, arrays: Mapping[str, np.ndarray], offsets: dict[str, int]
) -> Iterator[Any]:
    yield _FIXED.pack(MAGIC, version, len(header)) + header
    end = 0
    for name, offset in offsets.items():
        yield bytes(offset - end)
        array = np.asarray(arrays[name])
        # Copied only if not already contiguous and little-endian, one array at a time.
        array = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
        end = offset + array.nbytes
        yield array.reshape(-1).view(np.uint8)


# --- reading: everything is checked before use, and every size before memory is allocated ---


def _verified_header(handle: BufferedReader, size: int) -> tuple[int, bytes]:
    fixed = handle.read(_FIXED.size)
    _check(fixed[:8] == MAGIC[: len(fixed)], "not a spidertensor checkpoint")
    _check(len(fixed) == _FIXED.size, f"truncated: {len(fixed)} bytes")
    _, version, length = _FIXED.unpack(fixed)
    # Before the checksum, which a later format may store elsewhere.
    newer = f"written by a newer version of spidertensor (format {version})"
    _check(version <= FORMAT_VERSION, f"{newer}, this one reads up to {FORMAT_VERSION}")
    _check(version > 0, f"unknown format {version}")
    left = size - _FIXED.size - _DIGEST_BYTES - length
    possible = length <= HEADER_LIMIT and left >= 0 and (_FIXED.size + length) % ALIGN == 0
    _check(possible, f"truncated or damaged: a header of {length} bytes in a file of {size}")
    header = handle.read(length)
    digest = hashlib.sha256(fixed + header)
    while left > 0:
        chunk = handle.read(min(left, _CHUNK_BYTES))
        _check(len(chunk) > 0, "truncated while it was read")
        digest.update(chunk)
        left -= len(chunk)
    _check(handle.read(_DIGEST_BYTES) == digest.digest(), "truncated or damaged: the checksum does not match")
    return version, header


def _parse(version: int, header: bytes, payload: int) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Array records by name, and sections; without unknown sections."""
    try:
        content = json.loads(header.decode("utf-8"), parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"the header cannot be read: {error}") from error
    _check(isinstance(content, dict), "the header is not an object")
    wanted = {"arrays", "config", "position"} if version == 1 else {"arrays", "optional", "sections"}
    _check(content.keys() == wanted, "the header has missing or unknown keys")
    _check(isinstance(content["arrays"], list), "the header has no list of arrays")
    records: dict[str, dict[str, Any]] = {}
    end = 0
    for number, record in enumerate(content["arrays"]):
        reason = _wrong(record, end, records.keys())
        _check(not reason, f"array {number} of the header: {reason}")
        end = record["offset"] + record["nbytes"]
        records[record["name"]] = record
    _check(end == payload, f"the arrays end at byte {end} of {payload}")
    if version == 1:
        _check(isinstance(content["config"], dict), "the config is not an object")
        # All arrays of a version 1 file belong to the model.
        renamed = {f"model/{name}": record for name, record in records.items()}
        return renamed, {"model": content["config"], "position": content["position"]}
    return _known(records, content["sections"], content["optional"])


def _known(
    records: dict[str, dict[str, Any]], sections: Any, optional: Any
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Drop unknown optional sections; any other unknown section is an error."""
    _check(isinstance(sections, dict), "the sections are not an object")
    are_names = isinstance(optional, list) and all(isinstance(name, str) for name in optional)
    _check(are_names and sections.keys() >= set(optional), "the optional sections are not a list of sections")
    unknown = min(sections.keys() - SECTIONS.keys() - set(optional), default=None)
    newer = f"written by a newer version of spidertensor (section {unknown!r:.80})"
    _check(unknown is None, f"{newer}, this one reads {', '.join(sorted(SECTIONS))}")
    owners = {name: name.partition("/")[0] for name in records}
    lost = min((name for name, owner in owners.items() if owner not in sections), default=None)
    _check(lost is None, f"array {lost!r:.80} is in no section")
    kept = {name: record for name, record in records.items() if owners[name] in SECTIONS}
    return kept, {name: value for name, value in sections.items() if name in SECTIONS}


def _wrong(record: Any, end: int, names: Collection[str]) -> str:
    """Why a record cannot follow arrays of `end` bytes in all; empty if it is valid."""
    if not isinstance(record, dict) or record.keys() != {"name", "dtype", "shape", "offset", "nbytes"}:
        return "missing or unknown keys"
    if not isinstance(record["name"], str) or record["name"] in names:
        return "the name is not a string or appears twice"
    if record["dtype"] not in DTYPES:
        return "unknown dtype"
    shape = record["shape"]
    if not isinstance(shape, list) or len(shape) > MAX_NDIM:
        return "the shape is not a list of a possible length"
    # type(), because a bool is an int, and 8.0 == 8
    if not all(type(n) is int and n >= 0 for n in shape):
        return "invalid shape"
    itemsize = np.dtype(record["dtype"]).itemsize
    # NumPy multiplies the other sizes even if one is 0
    if itemsize * math.prod(max(n, 1) for n in shape) > np.iinfo(np.intp).max:
        return "invalid shape"
    if type(record["nbytes"]) is not int or record["nbytes"] != itemsize * math.prod(shape):
        return "shape and number of bytes do not agree"
    if type(record["offset"]) is not int or record["offset"] != _aligned(end):
        return "does not begin where the previous one ends"
    return ""


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):  # NaN and Infinity (not JSON), and 1e999
        raise ValueError("a number is not finite")
    return value


def _read(handle: BufferedReader, start: int, record: dict[str, Any]) -> np.ndarray:
    array = np.empty(record["shape"], record["dtype"])
    handle.seek(start + record["offset"])
    flat = array.reshape(-1).view(np.uint8)
    count = handle.readinto(flat.data)
    _check(count == flat.size, "truncated while it was read")
    if record["dtype"] == "|b1":  # NumPy does not accept other bytes as truth values
        _check(flat.max(initial=0) <= 1, "a truth value is neither 0 nor 1")
    return array.astype(array.dtype.newbyteorder("="), copy=False)
