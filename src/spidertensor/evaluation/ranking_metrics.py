"""How well nodes are ranked: scores over ranks, one number each. Nothing here knows a model.

A rank says where the one node that was asked for stands among its candidates, 1 being the best. Ties count in
the middle, so a model that gives every node the same score has no hits. A rank may be infinite: a node that
was not among the candidates is never found. Without ranks every score is NaN.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

HITS, FOUND = 10, 20  # how long the lists are: HR@10, NDCG@10 and the coverage; recall@20


def ranks(scores: ArrayLike, wanted: ArrayLike, candidates: ArrayLike) -> NDArray[np.float64]:
    """(n,) the rank of the wanted node in each row of `scores` (n, nodes).

    wanted:     (n,) nodes; each is a candidate whatever `candidates` says
    candidates: (n, nodes), True where a node takes part
    """
    scores, wanted = np.asarray(scores, np.float64), np.asarray(wanted, np.int64)
    rivals = np.array(candidates, bool)
    rows = np.arange(len(wanted))
    rivals[rows, wanted] = False
    own = scores[rows, wanted]
    if np.isnan(own).any() or np.isnan(scores[rivals]).any():
        raise ValueError("a score is not a number, so its node has no rank")  # else it would be the first
    greater = ((scores > own[:, None]) & rivals).sum(axis=1)
    equal = ((scores == own[:, None]) & rivals).sum(axis=1)
    return 1.0 + greater + equal / 2


def hit_rate(ranks: ArrayLike, k: int) -> float:
    """HR@k: how often the node is among the first k. With one wanted node per list, recall@k is the same."""
    return _average(_ranks(ranks) <= k)


def ndcg(ranks: ArrayLike, k: int) -> float:
    """NDCG@k: a hit counts 1 in the first place and less further down, 1/log2(1 + rank)."""
    rank = _ranks(ranks)
    return _average(np.where(rank <= k, 1 / np.log2(1 + rank), 0.0))


def mrr(ranks: ArrayLike) -> float:
    """The mean of 1/rank."""
    return _average(1 / _ranks(ranks))


def best(scores: ArrayLike, candidates: ArrayLike, k: int) -> NDArray[np.int64]:
    """The nodes that are among the first k of any row, each once. Ties are cut as they come."""
    listed = np.where(candidates, scores, -np.inf)
    k = min(k, listed.shape[1])
    first = np.argpartition(-listed, k - 1, axis=1)[:, :k]
    return np.unique(first[np.take_along_axis(np.asarray(candidates), first, axis=1)])


def scores_of(ranks: ArrayLike) -> dict[str, float]:
    """All scores of ranks by the names they have in rows."""
    return {
        f"hr_{HITS}": hit_rate(ranks, HITS),
        f"ndcg_{HITS}": ndcg(ranks, HITS),
        f"recall_{FOUND}": hit_rate(ranks, FOUND),
        "mrr": mrr(ranks),
    }


def _ranks(ranks: ArrayLike) -> NDArray[np.float64]:
    ranks = np.asarray(ranks, np.float64)
    if not (ranks >= 1).all():  # a NaN fails too
        raise ValueError("ranks begin at 1")
    return ranks


def _average(array: NDArray) -> float:
    return float(np.mean(array)) if len(array) else float("nan")
