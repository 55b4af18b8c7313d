"""The demo end to end: what it prints is what learn() returned, and the files it leaves are usable."""

from __future__ import annotations

import io
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

import spidertensor
from spidertensor.demo import described_flights, flights, load
from spidertensor.demo import race as demo
from spidertensor.estimator import Prior, SpiderRegressor
from spidertensor.evaluation.dataset import Dataset, DatasetError

SKIPPED = 0.1


def printed(out: Path, entries: int, **settings) -> str:
    console = Console(file=io.StringIO(), width=100, **settings)
    demo.run(console, out, entries)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


class ByHand(NamedTuple):
    """What the demo should come to: its model, and what was said about each entry. asked: first of them"""

    model: SpiderRegressor
    ids: pa.Table
    value: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    inside: dict[float, np.ndarray]


def by_hand(dataset: Dataset, entries: int) -> ByHand:
    """The race of the first method, written out: learn what is known, forecast what comes in this tick."""
    index, value, *_ = dataset.in_time_order()
    labels = dataset.labels or tuple(map(np.arange, dataset.shape))
    table = {mode: labels[k][index[:entries, k]] for k, mode in enumerate(dataset.modes)}
    ids, value, modes = pa.table(table), value[:entries], {mode: [] for mode in dataset.modes}
    tick_asked, tick_known = np.arange(entries) // 10, (np.arange(entries) + 100) // 10
    if dataset.known is not None and dataset.times is not None:
        hours = (dataset.times[:entries] - dataset.times[0]) // 3600
        tick_asked, tick_known = hours, (dataset.known[:entries] - dataset.times[0]) // 3600
        known = dataset.known[:entries]
        table, modes = (
            {name: each[:entries] for name, each in described_flights().items()},
            flights.ATTRIBUTES,
        )
    else:
        known = np.arange(entries) + 100
    order, model, learned, said = np.argsort(known, kind="stable"), SpiderRegressor(modes=modes), 0, {}
    mean, std = np.full((2, entries), np.nan)
    inside = {level: np.zeros(entries, bool) for level in (0.5, 0.9)}
    for tick in np.unique(tick_asked):
        now = int(np.searchsorted(tick_known[order], tick))
        if now >= 256 and now > learned:
            rows = order[learned:now]
            forecast = None if not learned else [said.get(row) for row in rows.tolist()]
            model.learn({name: each[rows] for name, each in table.items()}, value[rows], forecast=forecast)
            learned = now
        if learned:
            rows = np.flatnonzero(tick_asked == tick)
            forecast = model.forecast({name: each[rows] for name, each in table.items()})
            said |= dict(zip(rows.tolist(), forecast, strict=True))
            mean[rows], std[rows] = forecast.mean, forecast.std
            for level, hits in inside.items():
                low, high = model.predict_interval(forecast, coverage=level)
                hits[rows] = (low <= value[rows]) & (value[rows] <= high)
    return ByHand(model, ids, value, mean, std, inside)


def cells(text: str, name: str, last: int = 1) -> list[str]:
    """The cells of the row `name` of the table, as printed last; last: counted from the end"""
    rows = re.findall(rf"^\s*{name}\s{{2,}}(.*?)\s*$", text, re.MULTILINE)
    return re.split(r"\s{2,}", rows[-last])


def check_scores(text: str, hand: ByHand) -> None:
    scored = slice(int(SKIPPED * len(hand.value)), None)
    error, spider = (hand.value - hand.mean)[scored], cells(text, "SPIDER")
    assert spider[0] == f"{np.sqrt(np.mean(error**2)):.4g}"
    for cell, quantile in zip(spider[3:], (0.6744897501960817, 1.6448536269514722), strict=True):
        assert cell == f"{100 * np.mean(np.abs(error) <= quantile * hand.std[scored]):.1f} %"
    shares = [float(cell[:-2]) for cell in cells(text, "  calibrated", 1 + ("ids only" in text))]
    for share, hits in zip(shares, hand.inside.values(), strict=True):
        assert share == pytest.approx(100 * hits[scored].mean(), abs=0.2)  # the demo rounds quantiles


def check_model(out: Path, dataset: Dataset, hand: ByHand) -> SpiderRegressor:
    model = spidertensor.load(out / f"{dataset.name}.spider")
    assert isinstance(model, SpiderRegressor)
    assert model.n_entries_ == hand.model.n_entries_ < len(hand.value)
    np.testing.assert_array_equal(model.factors_[0].mean, hand.model.factors_[0].mean)
    return model


def check_extremes(text: str, dataset: Dataset) -> None:
    """Three wide and three narrow predictions of entries of the stream, widest first."""
    rows = re.findall(r"^ *(.*?)  +(-?[0-9.]+) ± ([0-9.]+) +± ([0-9.]+) *$", text, re.MULTILINE)
    assert len(rows) == 6
    assert float(rows[0][2]) >= float(rows[2][2]) > float(rows[5][2]) >= float(rows[3][2])
    assert all(len(row[0].split()) == len(dataset.modes) for row in rows)


def check_leader(text: str, model: SpiderRegressor) -> None:
    leader = max(model.members_, key=lambda member: member.weight)
    (said,) = re.findall(r"the one with (.*?) leads, with a weight of (\d+) %", " ".join(text.split()))
    assert said[1] == f"{100 * leader.weight:.0f}"
    own = Prior().get_params() | leader.own
    words = [f"bias var {own['bias_var']:g}", f"pair var {own['multilinear_var']:g}"]
    words += [f"memory {own['memory']:,}"] if own.get("memory") else []
    assert set(words) <= set(said[0].split(", "))


def test_every_member_is_named_by_what_it_has_of_its_own():
    rng = np.random.default_rng(0)
    members = [{}, {"memory": 1000}, {"bias_var": 0.5}, {"rank": 4}]
    model = SpiderRegressor(rank=2, hidden=(3,), committee=members)
    model.fit(rng.integers(0, 3, (20, 2)), rng.normal(size=20))
    assert demo._member_names(model) == [
        f"bias var {Prior.bias_var}, rank 2",
        f"memory 1,000, bias var {Prior.bias_var}, rank 2",
        "bias var 0.5, rank 2",
        f"bias var {Prior.bias_var}, rank 4",
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::spidertensor.SpiderWarning")  # many planes are new at first
def test_flights(tmp_path):
    try:
        dataset = load("flights")
    except DatasetError:
        pytest.skip("the flights are not here")
    n = 8_000
    text = printed(tmp_path, n)
    hand = by_hand(dataset, n)
    check_scores(text, hand)
    model = check_model(tmp_path, dataset, hand)
    check_extremes(text, dataset)
    check_leader(text, model)
    assert "800 flights, is not scored" in text
    assert "A delay is learned when the plane has landed" in " ".join(text.split())
    assert "synthetic" not in text
    assert {"UA", "AA"} <= set(model.factors_[0].ids)
    assert all(isinstance(hour, int) for hour in model.factors_[4].ids)


@pytest.fixture
def no_flights(monkeypatch):
    def only_synthetic(name: str) -> Dataset:
        if name == "flights":
            raise DatasetError("no file of flights")
        return load(name)

    monkeypatch.setattr(demo, "load", only_synthetic)


@pytest.mark.usefixtures("no_flights")
def test_without_the_flights_a_synthetic_stream(tmp_path):
    n = 5_000
    text = printed(tmp_path, n)
    dataset = load("synthetic")
    assert "this is a synthetic stream" in text.splitlines()[0]
    assert "minutes" not in text
    hand = by_hand(dataset, n)
    check_scores(text, hand)
    model = check_model(tmp_path, dataset, hand)
    check_extremes(text, dataset)
    check_leader(text, model)


@pytest.mark.usefixtures("no_flights")
def test_files_and_commands_are_printed_whole_and_usable(tmp_path):
    out = tmp_path / ("a folder with a [long] name" * 4) / "demo"
    text = printed(out, 2_000)
    lines = text.splitlines()
    model, picture = out / "synthetic.spider", out / "synthetic.png"
    assert f"Model:   {model}" in lines
    if find_spec("matplotlib"):
        assert f"Picture: {picture}" in lines
        assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    commands = [shlex.split(line) for line in lines if line.startswith("  spider ")]
    assert [command[1] for command in commands] == ["info", "recommend", "evaluate"]
    assert all(command[2] == str(model) for command in commands[:2])
    assert commands[2][2] == "synthetic"
    given = dict(word.split("=") for word in commands[1] if "=" in word)
    assert [*given, commands[1][commands[1].index("--over") + 1]] == ["mode0", "mode1", "mode2"]
    factors = spidertensor.load(model).factors_
    assert all(int(node) in factors[mode].ids for mode, node in enumerate(given.values()))


@pytest.mark.usefixtures("no_flights")
def test_without_matplotlib_there_is_no_picture_and_it_says_so(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # its import fails
    text = printed(tmp_path, 2_000)
    assert "Picture: none; needs matplotlib: pip install 'spidertensor[plot]'" in text
    assert [path.name for path in tmp_path.iterdir()] == ["synthetic.spider"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_flights")
def test_a_line_every_tenth_without_a_terminal_a_live_table_on_one(tmp_path):
    plain = printed(tmp_path, 30_000)
    live = printed(tmp_path, 30_000, force_terminal=True, force_interactive=True, legacy_windows=False)
    assert plain.count(": RMSE SPIDER") == 9  # nothing of the first tenth is scored
    assert ": RMSE SPIDER" not in live
    assert plain.count("per second") == 1
    assert live.count("per second") > 10
    assert "\x1b" not in plain
    assert cells(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", live), "SPIDER")[0] == cells(plain, "SPIDER")[0]
    assert "nan" not in live


@pytest.mark.usefixtures("no_flights")
def test_tables_fit_an_ordinary_terminal(tmp_path):
    console = Console(file=io.StringIO(), width=80)
    demo.run(console, tmp_path, 2_000)
    assert "…" not in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.usefixtures("no_flights")
def test_a_stream_of_a_few_entries(tmp_path):
    with pytest.raises(DatasetError, match="fewer than 256 values are known"):
        printed(tmp_path, 5)
