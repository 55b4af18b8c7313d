"""The files that the authors of POST published: acc, log counts of accesses, and dblp, publications."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spidertensor.evaluation.dataset import Info, Parts, as_batch, take
from spidertensor.method import Batch
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT
from spidertensor_study.datasets.prepared import events_of

ZEROS_PER_ONE = 9  # in a clean test


def read(path: Path) -> Parts:
    """The POST authors' NAME.mat: test folds `data.test{i}` with `subs` (from 1) and `Ymiss`.

    Training entries are the rows of NAME-large-tensor.txt beside it (index from 0, value), or of an array
    `train` in the .mat (index from 1, value); `data.` may be missing. Zeros are drawn: see `_with_zeros`.
    """
    from scipy.io import loadmat

    content = loadmat(path, simplify_cells=True)
    content = content.get("data", content)
    folds = [content["test"]] if isinstance(content["test"], dict) else content["test"]
    paper = as_batch(
        np.concatenate([fold["subs"] for fold in folds]).astype(np.int64) - 1,
        np.concatenate([fold["Ymiss"] for fold in folds]),
    )
    text = path.with_name(f"{path.stem}-large-tensor.txt")
    if text.is_file():
        rows = np.loadtxt(io.StringIO(text.read_text().replace(",", " ")))
    elif "train" in content:
        rows = content["train"] - np.array([1, 1, 1, 0])
    else:
        raise ValueError(f"no training entries: neither {text.name} beside it nor an array `train` in it")
    shape = {"acc": (3_000, 150, 30_000), "dblp": (10_000, 200, 10_000)}[path.stem]
    return _with_zeros(as_batch(rows[:, :3].astype(np.int64), rows[:, 3]), paper, shape)


def _with_zeros(train: Batch, paper: Batch, shape: tuple[int, ...]) -> Parts:
    """Training entries (non-zeros that are not tested, and as many uniform zeros), and the clean test.

    The zeros of the published test lie in the low third of the last mode, which gives them away. The clean
    test has the same non-zeros, once each, and nine uniform zeros for each of them.
    """

    def keys(batch: Batch) -> NDArray[np.int64]:
        return np.asarray(np.ravel_multi_index(tuple(batch.index.T), shape))

    _, once = np.unique(keys(paper), return_index=True)
    tested = take(paper, once[paper.value[once] != 0])
    train = take(train, np.flatnonzero((train.value != 0) & ~np.isin(keys(train), keys(paper))))
    n_train, n_clean = len(train.value), ZEROS_PER_ONE * len(tested.value)
    drawn = np.random.default_rng(0).choice(np.prod(shape), 2 * (n_train + n_clean), replace=False)
    zeros = drawn[~np.isin(drawn, np.concatenate([keys(train), keys(paper)]))]
    index = np.stack(np.unravel_index(zeros, shape), axis=1)

    def joined(batch: Batch, zeros: NDArray[np.int64]) -> Batch:
        return as_batch(np.concatenate([batch.index, zeros]), np.append(batch.value, np.zeros(len(zeros))))

    tests = {"paper": paper, "clean": joined(tested, index[n_train : n_train + n_clean])}
    return {"shape": shape, "train": joined(train, index[:n_train]), "tests": tests}


_SOURCE = "https://github.com/yishuaidu/POST (the .mat file, and the -large-tensor.txt file beside it)"
_SHIFT = (
    "half of the training entries are non-zeros but a tenth of the test entries: "
    "coverage and calibration measure that shift"
)

_PUBLISHED = (
    Info(
        "acc",
        "log counts of accesses, 3,000 x 150 x 30,000, half of the 1,128,092 training entries zeros",
        ("user", "action", "resource"), "log count", GAUSSIAN, "MIT", _SOURCE, ("acc.mat",), read=read,
        held_out_note=_SHIFT,
    ),
    Info(
        "dblp",
        "who published where about what, 10,000 x 200 x 10,000, half of the 310,370 training entries zeros",
        ("author", "conference", "keyword"), "published", PROBIT, "MIT", _SOURCE, ("dblp.mat",), read=read,
        held_out_note=_SHIFT,
    ),
)  # fmt: skip
INFOS = (
    *_PUBLISHED,
    events_of(
        _PUBLISHED[1], "conference", "who published where about what: the 155,185 non-zeros of dblp, no time"
    ),
)
