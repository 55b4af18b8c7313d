"""What is known about the users and movies of MovieLens, as columns by node number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.evaluation.dataset import open_zip

Columns = dict[str, NDArray[Any]]  # (n_nodes,) by name

# the README of ml-1m.zip names them: its users.dat has only numbers
OCCUPATIONS = (
    "other", "academic/educator", "artist", "clerical/admin", "college/grad student", "customer service",
    "doctor/health care", "executive/managerial", "farmer", "homemaker", "K-12 student", "lawyer",
    "programmer", "retired", "sales/marketing", "scientist", "self-employed", "technician/engineer",
    "tradesman/craftsman", "unemployed", "writer",
)  # fmt: skip
_TITLE_AND_YEAR = re.compile(r"^(.*?)\s*\((\d{4})\)\s*$")


def read_npz(path: Path) -> dict[str, Columns]:
    """The prepared NAME-attributes.npz: user_* and movie_*, genres cut by movie_genres_start."""
    with open_zip(path), np.load(path, allow_pickle=False) as arrays:
        user = {name: arrays[f"user_{name}"] for name in ("age", "gender", "occupation")}
        start, genres = arrays["movie_genres_start"], arrays["movie_genres"].tolist()
        movie = {name: arrays[f"movie_{name}"] for name in ("year", "title")}
    movie["genres"] = _lists(genres[low:high] for low, high in pairwise(start))
    return {"user": user, "movie": movie}


def read_zip(path: Path, labels: Sequence[NDArray[Any]]) -> dict[str, Columns]:
    """The official ml-100k.zip or ml-1m.zip; labels: raw ids of the users and movies that have ratings."""
    found = {"ml-100k.zip": _read_100k, "ml-1m.zip": _read_1m}[path.name](path)
    rows = zip(found, labels, strict=True)
    users, movies = (tuple(zip(*(by_id[each] for each in ids.tolist()), strict=True)) for by_id, ids in rows)
    age, gender, occupation = users
    title, genres = movies
    parts = [_TITLE_AND_YEAR.match(each) for each in title]
    return {
        "user": {
            "age": np.array(age, np.int64), "gender": np.array(gender), "occupation": np.array(occupation),
        },
        "movie": {
            "year": np.array([float(part[2]) if part else np.nan for part in parts]),
            "title": np.array([part[1] if part else each for part, each in zip(parts, title, strict=True)]),
            "genres": _lists(genres),
        },
    }  # fmt: skip


_Tables = tuple[dict[int, tuple[int, str, str]], dict[int, tuple[str, list[str]]]]  # users, movies by raw id


def _read_100k(path: Path) -> _Tables:
    users, movies, genres = _lines(path, "ml-100k/u.user", "ml-100k/u.item", "ml-100k/u.genre", separator="|")
    names = [line[0] for line in genres if line[0]]
    return (
        {int(user): (int(age), gender, work) for user, age, gender, work, _ in users},
        {
            int(line[0]): (line[1], [name for name, has in zip(names, line[5:], strict=True) if has == "1"])
            for line in movies
        },
    )


def _read_1m(path: Path) -> _Tables:
    users, movies = _lines(path, "ml-1m/users.dat", "ml-1m/movies.dat", separator="::")
    return (
        {int(user): (int(age), gender, OCCUPATIONS[int(work)]) for user, gender, age, work, _ in users},
        {int(movie): (title, genres.split("|")) for movie, title, genres in movies},
    )


def _lines(path: Path, *members: str, separator: str) -> list[list[list[str]]]:
    with open_zip(path) as archive:
        texts = [archive.read(member).decode("latin-1") for member in members]
    return [[line.split(separator) for line in text.splitlines() if line] for text in texts]


def _lists(each: Iterable[list[str]]) -> NDArray[Any]:
    """(n,) an array of lists, also if all have the same length."""
    lists = list(each)
    column = np.empty(len(lists), object)
    column[:] = lists
    return column
