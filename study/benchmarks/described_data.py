"""Entries with what is known about their nodes, for benchmarks/attributes.py, cold_start.py, ten_modes.py."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor_study import datasets
from spidertensor_study.datasets import Dataset

Index = NDArray[np.int64]
Floats = NDArray[np.float64]
Bag = list[tuple[str, float]]  # features of a node: name, weight

IDS, ATTRIBUTES = "ids", "attributes"  # the columns that a model is given


class Described(NamedTuple):
    """A data set with a table for each mode: columns of the same length as the mode, maybe none."""

    data: Dataset
    tables: tuple[dict[str, NDArray[Any]], ...]

    def bags(self, columns: str) -> list[list[Bag]]:
        """Features of each node of each mode for models that take nothing but features.

        Numbers are cut into groups (an age into tens, a year into fives), several values share a weight of
        1 / sqrt(their number), and a missing value is left out.
        """
        tables = self.tables if columns == ATTRIBUTES else tuple({} for _ in self.tables)
        return [
            [[(f"id={node}", 1.0), *_features(table, node)] for node in range(size)]
            for size, table in zip(self.data.shape, tables, strict=True)
        ]

    def frame(self, index: Index, columns: str) -> dict[str, list[Any]]:
        """The columns of entries by name, for models that read a table: ids, then attributes."""
        found = {mode: nodes.tolist() for mode, nodes in zip(self.data.modes, index.T, strict=True)}
        if columns == ATTRIBUTES:
            for table, nodes in zip(self.tables, index.T, strict=True):
                found |= {name: column[nodes].tolist() for name, column in table.items()}
        return found


GROUPS = {"age": 10, "year": 5}  # width of a group of numbers


def _features(table: dict[str, NDArray[Any]], node: int) -> Bag:
    bag: Bag = []
    for name, column in table.items():
        value = column[node]
        if isinstance(value, list):
            bag += [(f"{name}={each}", len(value) ** -0.5) for each in value]
        elif name in GROUPS:
            bag += [] if np.isnan(value) else [(f"{name}={value // GROUPS[name]:.0f}", 1.0)]
        else:
            bag.append((f"{name}={value}", 1.0))
    return bag


def movielens(name: str) -> Described:
    """movielens-100k or movielens-1m: age, gender and occupation of a user, year and genres of a movie."""
    known = datasets.attributes(name)
    movie = {column: known["movie"][column] for column in ("year", "genres")}
    return Described(datasets.load(name), (known["user"], movie))


def without_attributes(data: Dataset) -> Described:
    return Described(data, tuple({} for _ in data.modes))
