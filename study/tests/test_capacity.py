"""How many numbers a method keeps of a node: what the registry says is what its state grows by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quick_settings import QUICK
from spidertensor.method import Batch
from spidertensor.spider.likelihoods import GAUSSIAN
from spidertensor_study.registry import METHODS
from spidertensor_study.report import runs, tables

NODES, MODES = 8, 2
# as another method, with one setting changed
SAME_CODE = ("spider-paper-tanh", "svb-dtf-tanh", "ss-gptf", "cp-wopt-1000", "cp-wopt-early")


def numbers_in(state: Any) -> int:
    """The numbers in all arrays of a state."""
    if isinstance(state, tuple | list):
        return sum(map(numbers_in, state))
    if isinstance(state, dict):
        return sum(map(numbers_in, state.values()))
    return np.size(state) if hasattr(state, "__array__") else 0


def after_learning(name: str, rank: int, n_nodes: int) -> int:
    """The numbers in the state after one batch that has n_nodes new nodes of each mode."""
    method = METHODS[name].build(rank, MODES, GAUSSIAN, 4 * n_nodes, **QUICK.get(name, {}))
    index = np.repeat(np.arange(n_nodes)[:, None], MODES, axis=1)
    values = np.random.default_rng(0).normal(size=n_nodes)
    return numbers_in(method.update(method.init(0), Batch(index, values))[0])


@pytest.mark.parametrize("name", [name for name in METHODS if name not in SAME_CODE])
def test_the_registry_says_how_many_numbers_a_node_takes(name):
    """Twice as many nodes: what else the state has, such as weights, stays."""
    rank = 3
    more = after_learning(name, rank, 2 * NODES) - after_learning(name, rank, NODES)
    assert more == NODES * MODES * METHODS[name].per_node(rank)


def row(method: str, rank: int, score: float, **settings: Any) -> dict[str, Any]:
    how = {
        "method": method,
        "data": "acc",
        "protocol": "held-out",
        "rank": rank,
        "batch_size": 256,
        "seed": 0,
    }
    return {
        "experiment": "capacity",
        "settings": how | {"at": 1, "entries": None} | settings,
        "scores": {"paper": {"metric": "rmse", "score": score}},
        "error": None,
    }


def test_the_table_of_sizes_begins_with_the_smallest():
    rows = [
        row("post", 40, 0.41),
        row("cp-wopt", 40, 0.35),
        row("spider-single", 4, 0.34, multilinear=3, node_noise=False),
        row("spider-single", 8, 0.33),
    ]
    (table,) = tables.capacity(runs.runs(rows))
    sizes = [int(entries[1].text.replace(",", "")) for _, entries in table.rows]
    assert sizes == [16, 40, 84, 860]
    assert [entries[2].best for _, entries in table.rows] == [False, False, True, False]
