"""Additive values, where biases are all there is to learn: is the model behind? JSON lines.

    python benchmarks/additive.py [--seeds 0 1 2] [--modes 2 5 12]

Without --modes `fit`, a line per seed, and one for all. Like lme4's InstEval: 73,421 marks from 1 to 5 that
2,972 students gave to 1,128 lecturers, drawn with the variances that lme4 finds there. A tenth is held out.
`biases` is the exact posterior mean of the additive model with the true variances, which no method can beat
by much. `behind` is how much larger the error of `fit` is; more than 0.3 % is too much, and makes the program
end with 1.

With --modes a stream for each number of modes, learned once: 500 nodes each, noise 0.6. Errors on 20,000
other entries after the first 1,000, 10,000 and 30,000, means over the seeds. `biases` learns entry by entry.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import pairwise
from time import process_time

import numpy as np
from scipy.sparse import csr_matrix, diags
from scipy.sparse.linalg import cg

from spidertensor import SpiderRegressor
from spidertensor.evaluation.floors import biases
from spidertensor.method import Batch
from spidertensor.spider.likelihoods import GAUSSIAN

STUDENTS, LECTURERS, MARKS = 2_972, 1_128, 73_421
SD_STUDENT, SD_LECTURER, SD_NOISE = 0.325, 0.514, 1.185
MOST_BEHIND = 0.003
NODES, NOISE, FIRST, ASKED = 500, 0.6, (1_000, 10_000, 30_000), 20_000  # of the streams


def marks(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(n, 2) who marks whom, some lecturers far more often than others, and the marks."""
    rng = np.random.default_rng(seed)
    weight = rng.gamma(1.0, size=LECTURERS)
    X = np.stack(
        [rng.integers(STUDENTS, size=MARKS), rng.choice(LECTURERS, size=MARKS, p=weight / weight.sum())],
        axis=1,
    )
    student, lecturer = SD_STUDENT * rng.normal(size=STUDENTS), SD_LECTURER * rng.normal(size=LECTURERS)
    y = 3.2 + student[X[:, 0]] + lecturer[X[:, 1]] + SD_NOISE * rng.normal(size=MARKS)
    return X, np.clip(np.rint(y), 1, 5)


def static_biases(X: np.ndarray, y: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Predictions of the exact posterior mean of mean + student + lecturer."""
    rows, size = np.arange(len(X)), STUDENTS + LECTURERS
    columns = np.concatenate([X[:, 0], STUDENTS + X[:, 1]])
    design = csr_matrix((np.ones(2 * len(X)), (np.tile(rows, 2), columns)), (len(X), size))
    prior = np.repeat([SD_NOISE**2 / SD_STUDENT**2, SD_NOISE**2 / SD_LECTURER**2], [STUDENTS, LECTURERS])
    found, failed = cg(design.T @ design + diags(prior), design.T @ (y - y.mean()), rtol=1e-10)
    assert not failed
    return y.mean() + found[asked[:, 0]] + found[STUDENTS + asked[:, 1]]


def rmse(mean: np.ndarray, value: np.ndarray) -> float:
    return float(np.sqrt(np.mean((mean - value) ** 2)))


def result(seed: int) -> dict[str, float]:
    X, y = marks(seed)
    cut = MARKS - MARKS // 10
    began = process_time()
    model = SpiderRegressor(random_state=seed).fit(X[:cut], y[:cut])
    seconds = process_time() - began
    error = rmse(np.clip(model.predict(X[cut:]), 1, 5), y[cut:])
    best = rmse(np.clip(static_biases(X[:cut], y[:cut], X[cut:]), 1, 5), y[cut:])
    passes = len((model.history_ or {"errors": [0]})["errors"])
    return {
        "seed": seed,
        "fit": round(error, 5),
        "biases": round(best, 5),
        "behind": round(error / best - 1, 5),
        "passes": passes,
        "cpu_seconds": round(seconds, 1),
    }


def sums(modes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Entries of a stream, whose values are sums of effects of variance 1 / modes, and noise."""
    rng = np.random.default_rng(seed)
    X = rng.integers(NODES, size=(FIRST[-1] + ASKED, modes))
    effects = rng.normal(size=(NODES, modes)) / np.sqrt(modes)
    return X, np.take_along_axis(effects, X, axis=0).sum(axis=1) + NOISE * rng.normal(size=len(X))


def stream_errors(modes: int, seed: int) -> list[tuple[float, float]]:
    """The errors of the model and of online biases, after each of FIRST entries."""
    X, y = sums(modes, seed)
    model, floor, errors = SpiderRegressor(random_state=seed), biases(modes, GAUSSIAN), []
    state = floor.init(seed)
    for start, stop in pairwise((0, *FIRST)):
        model.partial_fit(X[start:stop], y[start:stop])
        state, _ = floor.update(state, Batch(X[start:stop], y[start:stop]))
        predicted = model.predict(X[FIRST[-1] :]), floor.predict(state, X[FIRST[-1] :]).mean
        errors.append(tuple(rmse(mean, y[FIRST[-1] :]) for mean in predicted))
    return errors


def streams(modes: int, seeds: list[int]) -> None:
    """A line for each of FIRST."""
    errors = np.mean([stream_errors(modes, seed) for seed in seeds], axis=0)
    for first, (ours, floor) in zip(FIRST, errors, strict=True):
        row = {"modes": modes, "first": first, "stream": round(ours, 4), "biases": round(floor, 4)}
        sys.stdout.write(json.dumps(row | {"behind": round(ours / floor - 1, 4)}) + "\n")
        sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--modes", nargs="+", type=int, default=[])
    asked = parser.parse_args()
    for modes in asked.modes:
        streams(modes, asked.seeds)
    if asked.modes:
        return
    behind = []
    for seed in asked.seeds:
        row = result(seed)
        behind.append(row["behind"])
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
    mean = float(np.mean(behind))
    sys.stdout.write(json.dumps({"mean behind": round(mean, 5), "at most": MOST_BEHIND}) + "\n")
    sys.exit(mean > MOST_BEHIND)


if __name__ == "__main__":
    main()
