"""Named data sets: `load(name)` finds the file, reads it and returns a `Dataset` with its splits.

A file is looked for in the folder $SPIDER_DATA, in the user's cache folder, and in the official distribution
(a download with a checksum, or an installed package), in this order. If it is in none of them, a
`DatasetError` says where to get it and where to put it. A folder may have the prepared NAME.npz or the
official file.

To add a data set, write a file like anime.py with its INFOS and `read`, and add it to _FILES below.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from spidertensor import demo
from spidertensor.demo.synthetic import synthetic
from spidertensor.estimator.columns import Schema
from spidertensor.evaluation.dataset import (
    Dataset,
    DatasetError,
    Info,
    as_batch,
    installed_file,
    read_dataset,
)
from spidertensor_study.datasets import acc_dblp, anime, movielens, movielens_attributes
from spidertensor_study.datasets.prepared import as_events, read_npz

__all__ = [
    "ATTRIBUTES", "INFOS", "NAMES", "Dataset", "DatasetError", "Info", "attributes", "cache_folder",
    "describe", "described", "load", "locate", "on_disk", "synthetic",
]  # fmt: skip

_FILES = (movielens, acc_dblp, anime)
INFOS = {info.name: info for file in _FILES for info in file.INFOS} | demo.INFOS
NAMES = tuple(INFOS)
_OF_MOVIELENS = {"user": ("age", "gender", "occupation"), "movie": ("year", "title", "genres")}
# What `attributes` knows, by mode
ATTRIBUTES: dict[str, dict[str, tuple[str, ...]]] = dict.fromkeys(
    ("movielens-100k", "movielens-1m"), _OF_MOVIELENS
)


def describe(name: str) -> Info:
    if name in INFOS:
        return INFOS[name]
    raise DatasetError(f"unknown data set {name!r}: choose one of {', '.join(NAMES)}")


def load(name: str) -> Dataset:
    """Load a data set by name, downloading its file if needed; `synthetic` has its defaults."""
    info = describe(name)
    if name == "synthetic":
        return synthetic()
    path = locate(name)
    read = partial(read_npz, info) if path.suffix == ".npz" else info.read
    assert read is not None  # every data set with files has a reader
    return read_dataset(info, path, (lambda path: as_events(read(path))) if info.events_over else read)


def attributes(name: str) -> dict[str, movielens_attributes.Columns]:
    """What is known about the nodes of movielens-100k or movielens-1m: columns by node number, by mode.

    Read from NAME-attributes.npz, or from the official archive.
    """
    if name not in ATTRIBUTES:
        raise DatasetError(f"{name} has no attributes: choose {' or '.join(ATTRIBUTES)}")
    prepared = [folder / f"{name}-attributes.npz" for folder in _folders()]
    official = [folder / file for folder in _folders() for file in describe(name).files]
    found = next((path for path in (*prepared, *official) if path.is_file()), None)
    if found is None:
        wanted = f"{name}-attributes.npz or {describe(name).files[0]}"
        raise DatasetError(f"no attributes of {name}. Put {wanted} into {_folders()[0]}.")
    try:
        if found.suffix == ".npz":
            return movielens_attributes.read_npz(found)
        return movielens_attributes.read_zip(found, load(name).labels)
    except Exception as error:  # parsers raise anything on a broken file
        raise DatasetError(f"{found} has no valid attributes of {name}: {error!r:.200}") from error


def described(name: str, schema: Schema) -> Dataset:
    """A data set with attributes of its nodes, as a file that has them in its rows (own_file.py)."""
    from spidertensor.evaluation.with_attributes import FIRST_ROWS, decided  # imported here: slow

    known = attributes(name)
    with_ids = tuple(mode.name for mode in schema.modes if mode.has_id)
    data = load(name)
    if with_ids != data.modes:
        raise DatasetError(f"{name} has the modes {', '.join(data.modes)}, in this order")
    table = dict(zip(data.modes, data.train.index.T, strict=True))
    for mode in data.modes:
        table |= {column: cells[table[mode]] for column, cells in known[mode].items()}
    if unknown := [column for column in schema.inputs if column not in table]:
        there = ", ".join(column for mode in data.modes for column in known[mode])
        raise DatasetError(f"{name} has no column {unknown[0]!r}: there are {there}")
    first = {column: cells[:FIRST_ROWS] for column, cells in table.items()}
    index = np.column_stack([data.train.index, np.arange(len(data.train.value))])
    return replace(data, train=as_batch(index, data.train.value), table=table, schema=decided(schema, first))


def on_disk(name: str) -> Path | None:
    """The file of a data set if it is on this machine."""
    info = describe(name)
    for folder in _folders():
        for file in (f"{name}.npz", *info.files):
            if (folder / file).is_file():
                return folder / file
    return installed_file(info)


def locate(name: str) -> Path:
    """The file of a data set, downloaded if needed."""
    if found := on_disk(name):
        return found
    info, folders = describe(name), _folders()
    place = f"Put {' or '.join((f'{name}.npz', *info.files))} into {' or '.join(map(str, folders))}"
    place += ", or name its folder in SPIDER_DATA" if len(folders) == 1 else ""
    if not info.url:
        raise DatasetError(f"no file for {name}. Get it from {info.source}. {place}.")
    try:
        return _download(info.url, info.checksum, info.files[0], cache_folder())
    except ImportError:
        how = "pip install pooch to have it downloaded, or get it from"
        raise DatasetError(f"no file for {name}: {how} {info.url}. {place}.") from None
    except (OSError, ValueError) as error:  # no network, or another checksum
        reason = type(error).__name__  # the message of a failed connection has five lines
        raise DatasetError(f"{name} could not be downloaded from {info.url} ({reason}). {place}.") from error


def _folders() -> list[Path]:
    folder = os.environ.get("SPIDER_DATA")
    return [*([Path(folder).expanduser()] if folder else []), cache_folder()]


def cache_folder() -> Path:
    """The platform's usual cache folder, where downloads are kept."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "spidertensor"


def _download(url: str, checksum: str, file: str, folder: Path) -> Path:
    import pooch

    return Path(pooch.retrieve(url, known_hash=checksum, fname=file, path=folder))
