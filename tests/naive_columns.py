"""Columns to bags, entry by entry with dicts, written to be obvious.

For values, lists of values, crosses and recent nodes. Numbers and times have exact cases of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from math import sqrt


class Rows:
    """value -> row, the lowest that is free. In a full table the value longest unseen gives up its own."""

    def __init__(self, limit: int) -> None:
        self.limit, self.n_rows, self.n_evicted = limit, 0, 0
        self.row: dict = {}  # in order of arrival
        self.seen: dict = {}

    def evict_for(self, values, clock: int) -> list:
        """The values that give way to those of an entry."""
        for value in values:
            if value in self.row:
                self.seen[value] = clock
        new = [value for value in values if value not in self.row]
        gone = sorted(self.row, key=lambda value: self.seen[value])[: len(self.row) + len(new) - self.limit]
        gone = gone if len(self.row) + len(new) > self.limit else []
        self.n_evicted += len(gone)
        for value in gone:
            self.drop(value)
        return gone

    def drop(self, value) -> None:
        del self.row[value], self.seen[value]

    def learn(self, value, clock: int) -> int:
        if value not in self.row:
            free = min(set(range(self.limit)) - set(self.row.values()))
            self.row[value] = free
            self.n_rows = max(self.n_rows, free + 1)
        self.seen[value] = clock
        return self.row[value]


class NaiveColumns:
    """modes={"user": [Value("city"), Many("tags"), Cross("user", "city"), Recent("movie", 3)],
    "movie": [], "when": Context(Value("hour"), Cross("user", "movie", "hour"))}: tables 0 to 5"""

    def __init__(self, limit: int = 10**6, recent: int = 3, longest: int = 1000) -> None:
        """longest: there is room for so many tags, whatever the limit"""
        self.rows = [Rows(max(limit, longest) if table == 1 else limit) for table in range(6)]
        self.city, self.tags, self.ring = {}, {}, defaultdict(list)
        self.recent, self.clock = recent, 0

    def entry(self, entry: dict, *, learn: bool) -> dict:
        """(table, row) -> weight of one entry; with learn=False several unseen values have one key."""
        user, movie, hour = entry["user"], entry["movie"], entry.get("hour")
        if learn:
            self._make_room(entry)
        city = self.city.get(user) if entry.get("city") is None else entry["city"]
        tags = self.tags.get(user) if entry.get("tags") is None else _weights(entry["tags"])
        wanted = [(1, tag, weight) for tag, weight in (tags or {}).items()]
        if city is not None:
            wanted += [(0, city, 1.0), (2, (user, city), 1.0)]
        if hour is not None:
            wanted += [(4, hour, 1.0), (5, (user, movie, hour), 1.0)]
        found = Counter()
        for table, value, weight in wanted:
            rows = self.rows[table]
            if learn and table in (2, 5):
                rows.evict_for([value], self.clock)
            row = rows.learn(value, self.clock) if learn else rows.row.get(value, -1)
            found[table, row] += weight
        for seen in self.ring[user]:
            found[3, seen] += 1 / sqrt(len(self.ring[user]))
        if learn:
            self.city[user], self.tags[user] = city, tags
            self.ring[user] = [*self.ring[user], movie][-self.recent :]
            self.clock += 1
        return dict(found)

    def _make_room(self, entry: dict) -> None:
        """Evicted values are forgotten by the nodes that had them, and so are their combinations."""
        stated = {0: entry.get("city"), 4: entry.get("hour")}
        for table, value in stated.items():
            for gone in self.rows[table].evict_for([] if value is None else [value], self.clock):
                for combination in [each for each in self.rows[table // 4 * 3 + 2].row if each[-1] == gone]:
                    self.rows[table // 4 * 3 + 2].drop(combination)
                if table == 0:
                    self.city = {user: city for user, city in self.city.items() if city != gone}
        for gone in self.rows[1].evict_for(set(entry.get("tags") or ()), self.clock):
            for tags in self.tags.values():
                if tags:
                    tags.pop(gone, None)


def _weights(tags) -> dict:
    found: Counter = Counter()
    for tag in tags:
        found[tag] += 1 / sqrt(len(tags))
    return dict(found)
