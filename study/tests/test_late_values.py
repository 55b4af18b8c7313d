"""benchmarks/late_values.py: what peers know under the honest clock, and what the pages say of the rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from pages import ROOT, table
from spidertensor.evaluation.clock import Clock, honest_clock
from spidertensor.evaluation.protocols import StreamScores
from spidertensor.method import Batch
from spidertensor.spider.likelihoods import GAUSSIAN
from spidertensor_study.datasets import synthetic

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import late_peers
import late_values

N, TICK = 1500, 10


def times() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    asked = np.sort(rng.integers(5000, size=N))
    return asked, asked + rng.integers(1, 400, size=N)


def test_a_calendar_has_the_minute_the_weekday_and_the_day():
    time = np.array(["2013-01-01T00:00", "2013-02-02T17:45"], "datetime64[s]").astype(np.int64)
    found = late_peers.of_clock(time)
    assert found["minute"].tolist() == [0, 17 * 60 + 45]
    assert (found["weekday"][1] - found["weekday"][0]) % 7 == 32 % 7
    assert found["day"].tolist() == [0, 32]


def test_numbers_become_tenths_of_the_first_and_texts_categories():
    numbers = np.append(np.arange(100.0), [np.nan, 1e9])
    texts = np.array(["a", None] * 51, object)
    ids = np.arange(102)[:, None]
    found = late_peers.codes(ids, {"number": numbers, "text": texts}, 100)
    np.testing.assert_array_equal(found[:, 0], ids[:, 0])
    np.testing.assert_array_equal(found[:100, 1], np.arange(100) // 10)
    assert found[100:, 1].tolist() == [-1, 9]
    assert len(set(found[:, 2])) == 2


def test_recent_means_are_of_values_known_in_an_earlier_tick(monkeypatch):
    monkeypatch.setattr(late_peers, "RECENT_S", 300)
    rng, (asked, known) = np.random.default_rng(1), times()
    value, group = rng.normal(size=N), rng.integers(3, size=N)
    found = late_peers.recent({"origin": group}, value, asked, known, TICK)
    for at in range(0, N, 37):
        now = asked[0] + (asked[at] - asked[0]) // TICK * TICK
        mine = (known >= now - 300) & (known < now) & (group == group[at])
        assert found["recent number, origin"][at] == mine.sum()
        if mine.any():
            assert found["recent mean, origin"][at] == pytest.approx(value[mine].mean())
        else:
            assert np.isnan(found["recent mean, origin"][at])


def said(label: str, change: float) -> np.ndarray:
    """What a peer says of each entry if the values known in the second half are changed by so much."""
    data, (asked, known) = synthetic((12, 9), N), times()
    index, value, *_ = data.in_time_order()
    value = value + change * (known >= 2500)
    stream = Batch(np.column_stack([index, np.arange(N)]), value)
    numbers = {"number": np.random.default_rng(2).normal(size=N)}
    if label == "River FM":
        how = {"rate": 0.01, "latent_rate": 0.01, "n_factors": 3}
        method = late_peers.river_fm(data, late_peers.codes(index, numbers, 100), **how)
    else:
        method = late_peers.lightgbm(index, numbers, known, [])
    scores, clock = StreamScores(value, GAUSSIAN), Clock(asked, known, "seconds", TICK)
    list(honest_clock(method, stream, clock, likelihood=GAUSSIAN, scaled=label == "River FM", scores=scores))
    return scores.predicted.mean


@pytest.mark.parametrize("label", ["River FM", "LightGBM"])
def test_a_peer_knows_nothing_too_early(label, monkeypatch):
    pytest.importorskip("river" if label == "River FM" else "lightgbm", reason="pip install './study[peers]'")
    monkeypatch.setattr(late_peers, "REFIT_S", 500)
    monkeypatch.setattr(late_peers, "FIRST_FIT", 300)
    first, second, (asked, _) = said(label, 0), said(label, 3), times()
    early = asked < 2500
    np.testing.assert_array_equal(first[early], second[early])
    assert np.nanmean(second[~early] - first[~early]) > 0.3


# --- what the pages say

PAGE = ROOT / "study" / "docs" / "benchmarks.md"
ROWS = [json.loads(line) for line in late_values.ROWS.read_text(encoding="utf-8").splitlines()]


def row_of(data: str, case: str, model: str) -> dict:
    (row,) = [row for row in ROWS if (row["data"], row["case"], row["model"]) == (data, case, model)]
    return row


def test_the_table_of_late_values_is_what_was_measured():
    shown = table(PAGE, "| flights after landing, RMSE |")
    assert set(shown) == set(late_values.MODELS)
    for label, (rmse, half, ninety, quarters, months) in shown.items():
        row = row_of("flights", late_values.LANDED, label)
        assert rmse == f"{row['rmse']:.1f}"
        if "covers_90" not in row:
            assert (half, ninety, quarters, months) == ("",) * 4
            continue
        assert (half, ninety) == (f"{row['covers_50']:.1f}", f"{row['covers_90']:.1f}")
        assert quarters == " / ".join(f"{share:.1f}" for share in row["quarters"])
        assert months == f"{min(row['months'].values()):.1f} to {max(row['months'].values()):.1f}"


@pytest.mark.parametrize("page", ["study/docs/benchmarks.md", "docs/uncertainty.md"])
def test_the_tables_of_cases_are_what_was_measured(page):
    late = {"flights": late_values.LANDED, "flights, attributes": late_values.LANDED}
    for label, cells in table(ROOT / page, "| next entry | value known later | at rest |").items():
        data, _, more = label.partition(", ")
        cases = (late_values.NEXT, late.get(label, late_values.LATE), late_values.AT_REST)
        model = late_values.WITH if more else late_values.OURS
        for case, cell in zip(cases, cells, strict=True):
            if cell:
                row = row_of(data, case, model)
                digits = 1 if data == "flights" else 3
                assert cell == f"{row['rmse']:.{digits}f}: {row['covers_50']:.1f} / {row['covers_90']:.1f}"
