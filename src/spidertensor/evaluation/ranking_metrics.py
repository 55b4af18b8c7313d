"""Metrics of rankings: functions of ranks that return one number, independent of any model.

A rank is the place of the one wanted node among its candidates; 1 is best. Tied nodes share the middle
rank, so a model that gives every node the same score has no hits. A node that is not a candidate has an
infinite rank. Without ranks every score is NaN.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

HITS_TOP, RECALL_TOP = 10, 20  # list lengths: HR@10, NDCG@10 and coverage; recall@20


def ranks(scores: ArrayLike, wanted: ArrayLike, candidates: ArrayLike) -> NDArray[np.float64]:
    """(n,) rank of the wanted node in each row of `scores` (n, nodes).

    wanted:     (n,) nodes; always candidates
    candidates: (n, nodes), whether a node is a candidate
    """
    scores, wanted = np.asarray(scores, np.float64), np.asarray(wanted, np.int64)
    rivals = np.array(candidates, bool)
    rows = np.arange(len(wanted))
    rivals[rows, wanted] = False
    own = scores[rows, wanted]
    if np.isnan(own).any() or np.isnan(scores[rivals]).any():
        raise ValueError("a score is NaN, so its node has no rank")  # would otherwise rank first
    greater = ((scores > own[:, None]) & rivals).sum(axis=1)
    equal = ((scores == own[:, None]) & rivals).sum(axis=1)
    return 1.0 + greater + equal / 2


def hit_rate(ranks: ArrayLike, k: int) -> float:
    """HR@k: share of nodes among the first k. Equals recall@k, with one wanted node per list."""
    return _average(_ranks(ranks) <= k)


def ndcg(ranks: ArrayLike, k: int) -> float:
    """NDCG@k: a hit counts 1/log2(1 + rank)."""
    rank = _ranks(ranks)
    return _average(np.where(rank <= k, 1 / np.log2(1 + rank), 0.0))


def mrr(ranks: ArrayLike) -> float:
    """Mean reciprocal rank."""
    return _average(1 / _ranks(ranks))


def best(scores: ArrayLike, candidates: ArrayLike, k: int) -> NDArray[np.int64]:
    """The distinct nodes among the first k of any row. Ties are broken arbitrarily."""
    listed = np.where(candidates, scores, -np.inf)
    k = min(k, listed.shape[1])
    first = np.argpartition(-listed, k - 1, axis=1)[:, :k]
    return np.unique(first[np.take_along_axis(np.asarray(candidates), first, axis=1)])


def scores_of(ranks: ArrayLike) -> dict[str, float]:
    """All scores by their names in rows."""
    return {
        f"hr_{HITS_TOP}": hit_rate(ranks, HITS_TOP),
        f"ndcg_{HITS_TOP}": ndcg(ranks, HITS_TOP),
        f"recall_{RECALL_TOP}": hit_rate(ranks, RECALL_TOP),
        "mrr": mrr(ranks),
    }


def _ranks(ranks: ArrayLike) -> NDArray[np.float64]:
    ranks = np.asarray(ranks, np.float64)
    if not (ranks >= 1).all():  # a NaN fails too
        raise ValueError("ranks begin at 1")
    return ranks


def _average(array: NDArray) -> float:
    return float(np.mean(array)) if len(array) else float("nan")
