"""Who liked which anime."""

from __future__ import annotations

from pathlib import Path

from spidertensor.evaluation.dataset import Info, Parts, columns, from_ids
from spidertensor.spider.likelihoods import PROBIT
from spidertensor_study.datasets.prepared import events_of

LIKED = 8  # ratings of at least this are a 1


def read(path: Path) -> Parts:
    """A rating of -1 means watched but not rated: such entries are dropped."""
    with path.open("rb") as file:
        user, anime, rating = columns(file, "user_id anime_id rating")
    rated = rating != -1
    return from_ids([user[rated], anime[rated]], rating[rated] >= LIKED)


_LIKES = Info(
    "anime",
    f"who liked what (rating >= {LIKED}): 6,337,241 ratings, or 419,943 in a prepared sample",
    ("user", "anime"), "liked", PROBIT, "CC0",
    "https://www.kaggle.com/datasets/CooperUnion/anime-recommendations-database", ("rating.csv",),
    read=read, ones_from=LIKED,
)  # fmt: skip
INFOS = (
    _LIKES,
    events_of(_LIKES, "anime", "who liked what, the likes alone: 254,581 in a prepared sample, no time"),
)
