"""What is one more mode worth? JSON lines: the prequential RMSE with and without modes that say something
about a node of another mode, for all entries and for those of nodes that are hardly known yet.

    SPIDER_DATA=folder python benchmarks/side_information.py [number of seeds]

movielens-100k: the age group and the occupation of a user, and the genres of a movie. These are in the
official ml-100k.zip (spider data get movielens-100k), not in a prepared movielens-100k.npz.
flights: the carrier, which is a category of the plane, and the hour, which is a number cut into bins.

Entries come in time order. The first tenth is learned but not scored. "user 0 to 4" are the entries of users
who had 0 to 4 entries before.
"""

from __future__ import annotations

import io
import json
import os
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd

from spidertensor import SpiderRegressor
from spidertensor.evaluation.protocols import SKIPPED_SHARE
from spidertensor_study import datasets

KNOWN_BEFORE = {"0 to 4": (0, 5), "5 to 19": (5, 20), "20 and more": (20, 10**9)}
MOVIELENS = {
    "user, movie": ["user", "movie"],
    "user, movie, age group": ["user", "movie", "age group"],
    "user, movie, occupation": ["user", "movie", "occupation"],
    "user, movie, genres": ["user", "movie", "genres"],
    "user, movie, all three": ["user", "movie", "age group", "occupation", "genres"],
    # of visitors who are not known by an id
    "movie": ["movie"],
    "movie, age group": ["movie", "age group"],
    "movie, age group, occupation": ["movie", "age group", "occupation"],
}
FLIGHTS = {
    "origin, dest, plane": ["origin", "dest", "tailnum"],
    "and carrier": ["origin", "dest", "tailnum", "carrier"],
    "and hour": ["origin", "dest", "tailnum", "hour"],
    "and carrier, hour": ["origin", "dest", "tailnum", "carrier", "hour"],
}


def movielens() -> pd.DataFrame:
    """One row for each rating in time order, with what is known about its user and its movie."""
    path = Path(os.environ["SPIDER_DATA"]) / "ml-100k.zip"
    with zipfile.ZipFile(path) as archive:
        files = {
            name: archive.read(f"ml-100k/u.{name}").decode("latin-1") for name in ("data", "user", "item")
        }
    ratings = pd.read_csv(io.StringIO(files["data"]), sep="\t", names=["user", "movie", "value", "time"])
    users = [line.split("|") for line in files["user"].splitlines()]
    age = {int(user): f"{int(years) // 10 * 10}s" for user, years, *_ in users}
    occupation = {int(user): work for user, _, _, work, _ in users}
    # all genres of a movie as one id: "0001110000000000000"
    genres = {int(line.split("|")[0]): "".join(line.split("|")[5:]) for line in files["item"].splitlines()}
    ratings["age group"] = ratings["user"].map(age)
    ratings["occupation"] = ratings["user"].map(occupation)
    ratings["genres"] = ratings["movie"].map(genres)
    return ratings.sort_values("time", kind="stable", ignore_index=True)


def flights() -> pd.DataFrame:
    data = datasets.load("flights")
    stream = data.in_time_order()
    return pd.DataFrame(stream.index, columns=list(data.modes)).assign(value=stream.value)


def scores(rows: pd.DataFrame, modes: list[str], nodes: list[str], seed: int) -> dict[str, float]:
    value = rows["value"].to_numpy(float)
    update = SpiderRegressor(random_state=seed).learn(rows[modes], value)
    squares = (update.mean - value) ** 2
    scored = np.arange(len(rows)) >= SKIPPED_SHARE * len(rows)
    found = {"all": scored}
    for node in nodes:
        before = rows.groupby(node).cumcount().to_numpy()
        for name, (low, high) in KNOWN_BEFORE.items():
            found[f"{node} {name}"] = scored & (before >= low) & (before < high)
    return {name: float(np.sqrt(squares[part].mean())) for name, part in found.items()}


def report(
    dataset: str, rows: pd.DataFrame, variants: dict[str, list[str]], nodes: list[str], seeds: int
) -> None:
    for name, modes in variants.items():
        each = [scores(rows, modes, nodes, seed) for seed in range(seeds)]
        rmse = {part: round(float(np.mean([one[part] for one in each])), 4) for part in each[0]}
        spread = round(float(np.std([one["all"] for one in each])), 4)
        row = {"dataset": dataset, "modes": name, "seeds": seeds, "rmse": rmse, "std over seeds": spread}
        print(json.dumps(row), flush=True)


def main(seeds: int) -> None:
    report("movielens-100k", movielens(), MOVIELENS, ["user", "movie"], seeds)
    report("flights", flights(), FLIGHTS, ["tailnum"], seeds)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
