"""Columns to bags, entry by entry with dicts, written to be obvious.

For values, lists of values, crosses and recent nodes. Numbers and times have exact cases of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from math import sqrt


class Rows(dict):
    """value -> row in order of first appearance; None if there is no room."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def row(self, value, *, learn: bool):
        if learn and value not in self and len(self) < self.limit:
            self[value] = len(self)
        return self.get(value, None if learn else -1)


class NaiveColumns:
    """modes={"user": [Value("city"), Many("tags"), Cross("user", "city"), Recent("movie", 3)],
    "movie": [], "when": Context(Value("hour"), Cross("user", "movie", "hour"))}: tables 0 to 5"""

    def __init__(self, limit: int = 10**6, recent: int = 3) -> None:
        self.rows = [Rows(limit) for _ in range(6)]
        self.city, self.tags, self.ring = {}, {}, defaultdict(list)
        self.recent = recent

    def entry(self, entry: dict, *, learn: bool) -> dict:
        """(table, row) -> weight of one entry; with learn=False several unseen values have one key."""
        user, movie = entry["user"], entry["movie"]
        city = self.city.get(user) if entry.get("city") is None else entry["city"]
        tags = self.tags.get(user) if entry.get("tags") is None else entry["tags"]
        if not learn and entry.get("city") is None and city not in self.rows[0]:
            city = None  # it was left out when it was learned
        found = Counter()

        def add(table, value, weight=1.0):
            row = self.rows[table].row(value, learn=learn)
            if row is not None:
                found[table, row] += weight

        if city is not None:
            add(0, city)
            add(2, (user, city))
        for tag in tags or ():
            left_out = not learn and entry.get("tags") is None and tag not in self.rows[1]
            if not left_out:
                add(1, tag, 1 / sqrt(len(tags)))
        for seen in self.ring[user]:
            found[3, seen] += 1 / sqrt(len(self.ring[user]))
        if entry.get("hour") is not None:
            add(4, entry["hour"])
            add(5, (user, movie, entry["hour"]))
        if learn:
            self.city[user], self.tags[user] = city, tags
            self.ring[user] = [*self.ring[user], movie][-self.recent :]
        return dict(found)
