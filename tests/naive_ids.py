"""The rule of max_nodes, written to be obvious."""

from __future__ import annotations


class NaiveMode:
    """The rule, written to be obvious: an entry number for each id, and a search for the smallest."""

    def __init__(self, limit: int) -> None:
        self.limit, self.last_seen, self.row_of, self.evicted = limit, {}, {}, 0

    def longest_unseen(self, raw) -> list:
        """The id that has to go before `raw` is learned, if any."""
        full = raw not in self.last_seen and len(self.last_seen) == self.limit
        return [min(self.last_seen, key=self.last_seen.__getitem__)] if full else []

    def see(self, entry: int, raw) -> int:
        for old in self.longest_unseen(raw):
            self.row_of[raw] = self.row_of.pop(old)
            del self.last_seen[old]
            self.evicted += 1
        self.row_of.setdefault(raw, len(self.row_of))
        self.last_seen[raw] = entry
        return self.row_of[raw]
