"""Are intervals as wide and as right after a sorted file as after a shuffled one? JSON lines.

    SPIDER_DATA=folder python benchmarks/sorted_files.py

movielens-100k sorted by user and by movie, flights by plane and by carrier, each learned once, in that order
(`partial_fit`), and once shuffled. Asked is a random tenth, held out:

    rmse, held   error, and the share of values inside calibrated 90 % intervals
    held_lowest  the same share in the tenth of the file, of ten, where it is lowest
    first_last   mean width of the intervals of nodes in the first tenth of the sorted file, over that of the
                 last; below 1.6, and above its inverse, is good
"""

from __future__ import annotations

import json
import warnings

import numpy as np

from spidertensor import SpiderRegressor, SpiderWarning
from spidertensor_study import datasets

FILES = {"movielens-100k": ("user", "movie"), "flights": ("tailnum", "carrier")}
CALLS = 50


def row(index: np.ndarray, value: np.ndarray, mode: int, *, in_order: bool) -> dict[str, float]:
    shuffled = np.random.default_rng(0).permutation(len(value))
    asked, learned = np.split(shuffled, [len(value) // 10])
    by_node = learned[np.argsort(index[learned, mode], kind="stable")]
    model = SpiderRegressor()
    for rows in np.array_split(by_node if in_order else learned, CALLS):
        model.partial_fit(index[rows], value[rows])
    low, high = model.predict_interval(index[asked], 0.9)
    inside = (low <= value[asked]) & (value[asked] <= high)
    place = np.searchsorted(index[by_node, mode], index[asked, mode]) * 10 // len(by_node)
    there = np.unique(place)
    width, held = (np.array([part[place == each].mean() for each in there]) for part in (high - low, inside))
    error = model.predict(index[asked]) - value[asked]
    return {
        "rmse": float(np.sqrt(np.mean(error**2))),
        "held": float(inside.mean()),
        "held_lowest": float(held.min()),
        "first_last": float(width[0] / width[-1]),
    }


def main() -> None:
    warnings.simplefilter("ignore", SpiderWarning)  # that the entries come sorted
    for name, modes in FILES.items():
        data = datasets.load(name)
        for mode in modes:
            for in_order in (True, False):
                found = row(data.train.index, data.train.value, data.modes.index(mode), in_order=in_order)
                found = {what: round(number, 4) for what, number in found.items()}
                about = {"file": name, "by": mode, "learned": "sorted" if in_order else "shuffled"}
                print(json.dumps(about | found), flush=True)


if __name__ == "__main__":
    main()
