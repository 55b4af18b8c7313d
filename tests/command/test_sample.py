"""`spider sample`: ratings that are the same every time, and that attributes say something of."""

from __future__ import annotations

import csv
from datetime import datetime


def test_the_sample_is_the_same_every_time_and_has_what_its_columns_say(folder, spider, fails):
    assert spider("sample", "a.csv")[0] == 0
    assert spider("sample", "b.csv")[0] == 0
    assert (folder / "a.csv").read_bytes() == (folder / "b.csv").read_bytes()
    with (folder / "a.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4_000
    assert list(rows[0]) == ["user", "age", "movie", "genres", "year", "rating", "time"]
    assert {row["rating"] for row in rows} == set("12345")
    assert len({(row["movie"], row["genres"], row["year"]) for row in rows}) <= 100  # they are the film's
    times = [datetime.fromisoformat(row["time"]) for row in rows]
    assert times == sorted(times)
    assert "exists already" in fails("sample", "a.csv")
    assert spider("sample", "a.csv", "--force")[0] == 0
