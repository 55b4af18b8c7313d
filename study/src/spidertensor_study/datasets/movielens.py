"""Ratings of movies: MovieLens-1M and MovieLens-100k."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from spidertensor.evaluation.dataset import Info, Parts, columns, from_ids, open_zip
from spidertensor.spider.likelihoods import GAUSSIAN
from spidertensor_study.datasets.prepared import events_of


def read(path: Path) -> Parts:
    """A line has user, movie, rating and time, separated by :: (1m) or a tab (100k)."""
    member = {"ml-1m.zip": "ml-1m/ratings.dat", "ml-100k.zip": "ml-100k/u.data"}[path.name]
    with open_zip(path) as archive:
        text = archive.read(member).replace(b"::", b",").replace(b"\t", b",")
    user, movie, rating, time = columns(
        io.BytesIO(b"user,movie,rating,time\n" + text), "user movie rating time"
    )
    return from_ids([user, movie], rating) | {"time_order": np.argsort(time, kind="stable")}


_LICENCE = "research only, with acknowledgement, no redistribution: see the README of the archive"
_FILES = "https://files.grouplens.org/datasets/movielens/"

_RATINGS = (
    Info(
        "movielens-1m",
        "1,000,209 ratings from 1 to 5 of 3,706 movies by 6,040 users, with time",
        ("user", "movie"), "rating", GAUSSIAN, _LICENCE, "https://grouplens.org/datasets/movielens/1m/",
        ("ml-1m.zip",), _FILES + "ml-1m.zip", "md5:c4d9eecfca2ab87c1945afe126590906", read,
        prequential_note="a third of the timestamps are estimates, and within an hour high and low ratings "
        "stand apart: this order gives some ratings away",
    ),
    Info(
        "movielens-100k",
        "100,000 ratings from 1 to 5 of 1,682 movies by 943 users, with time",
        ("user", "movie"), "rating", GAUSSIAN, _LICENCE, "https://grouplens.org/datasets/movielens/100k/",
        ("ml-100k.zip",), _FILES + "ml-100k.zip", "md5:0e33842e24a9c977be4e0107933c0723", read,
    ),
)  # fmt: skip
INFOS = (
    *_RATINGS,
    events_of(_RATINGS[0], "movie", "who rated which movie: the 1,000,209 ratings without their values"),
    events_of(_RATINGS[1], "movie", "who rated which movie: the 100,000 ratings without their values"),
)
