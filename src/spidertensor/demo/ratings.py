"""Made-up ratings of made-up films, to follow the documentation with: the same rows every time.

A rating is a mean, what the user and the film are worth, how the tastes of the user suit the genres of the
film, and noise, in whole stars. Older users like older films.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import numpy as np

HEADER = ("user", "age", "movie", "genres", "year", "rating", "time")
GENRES = ("comedy", "documentary", "drama", "horror", "romance", "space")
FIRST = ("Amber", "Broken", "Distant", "Electric", "Golden", "Last", "Northern", "Paper", "Second", "Silent")
SECOND = ("Bridge", "Garden", "Harbour", "Mirror", "Orbit", "Parade", "River", "Signal", "Station", "Winter")
USERS, ENTRIES = 200, 4_000
START, SPAN_S = datetime(2024, 1, 1), 366 * 86_400


def ratings() -> Iterator[tuple[Any, ...]]:
    """Rows in the order of time, with the columns of HEADER."""
    rng = np.random.default_rng(0)
    films = [f"{first} {second}" for first in FIRST for second in SECOND]
    years = rng.integers(1960, 2024, len(films))
    genres = rng.random((len(films), len(GENRES))).argsort(axis=1) < rng.integers(1, 4, (len(films), 1))
    ages = rng.integers(16, 80, USERS)
    tastes, of_user = rng.normal(size=(USERS, len(GENRES))), rng.normal(scale=0.4, size=USERS)
    of_film = rng.normal(scale=0.5, size=len(films))
    favour = rng.zipf(1.6, len(films)).clip(max=20)  # some films are seen by many
    user = rng.integers(USERS, size=ENTRIES)
    film = rng.choice(len(films), ENTRIES, p=favour / favour.sum())
    suits = (tastes[user] * genres[film]).sum(axis=1) / genres[film].sum(axis=1)
    old = (ages[user] - 48) / 18 * (1992 - years[film]) / 18
    f = 3.4 + of_user[user] + of_film[film] + 0.7 * suits + 0.2 * old + rng.normal(scale=0.6, size=ENTRIES)
    seconds = np.sort(rng.integers(SPAN_S, size=ENTRIES))
    for u, m, stars, second in zip(user, film, f.round().clip(1, 5), seconds, strict=True):
        tags = "|".join(name for name, has in zip(GENRES, genres[m], strict=True) if has)
        when = (START + timedelta(seconds=int(second))).isoformat()
        yield int(u) + 1, int(ages[u]), films[m], tags, int(years[m]), int(stars), when
