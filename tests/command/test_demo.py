"""The demo end to end: what it prints is what learn() returned, and the files it leaves are usable."""

from __future__ import annotations

import io
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

import spidertensor
from spidertensor.demo import load
from spidertensor.demo import race as demo
from spidertensor.estimator import Prior, SpiderRegressor
from spidertensor.evaluation.dataset import Dataset, DatasetError

SKIPPED = 0.1


def printed(out: Path, entries: int, **settings) -> str:
    console = Console(file=io.StringIO(), width=100, **settings)
    demo.run(console, out, entries)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def raw_stream(dataset: Dataset, entries: int) -> tuple[pa.Table, np.ndarray]:
    index, value, _ = dataset.in_time_order()
    index, value = index[:entries], value[:entries]
    labels = dataset.labels or tuple(map(np.arange, dataset.shape))
    columns = {mode: labels[k][index[:, k]] for k, mode in enumerate(dataset.modes)}
    return pa.table(columns), value


def cells(text: str, name: str, last: int = 1) -> list[str]:
    """The cells of the row `name` of the table, as printed last; last: counted from the end"""
    rows = re.findall(rf"^\s*{name}\s{{2,}}(.*?)\s*$", text, re.MULTILINE)
    return re.split(r"\s{2,}", rows[-last])


def check_scores(text: str, dataset: Dataset, entries: int) -> None:
    ids, value = raw_stream(dataset, entries)
    scored = slice(int(SKIPPED * entries), None)
    update = SpiderRegressor().learn(ids, value)
    error = (value - update.mean)[scored]
    spider = cells(text, "SPIDER")
    assert spider[0] == f"{np.sqrt(np.mean(error**2)):.4g}"
    assert spider[2] == f"{update.log_evidence[scored].mean():.4g}"
    widths = np.sqrt(update.var + update.noise)[scored]
    for cell, quantile in zip(spider[3:], (0.6744897501960817, 1.6448536269514722), strict=True):
        assert cell == f"{100 * np.mean(np.abs(error) <= quantile * widths):.1f} %"
    assert update.below is not None
    inside = np.abs(update.below[scored] - 0.5)
    shares = [100 * np.mean(inside <= level / 2) for level in (0.5, 0.9)]
    described = dataset.name == "flights"  # learned once more, with attributes
    assert cells(text, "  calibrated", 1 + described) == [f"{share:.1f} %" for share in shares]
    if described:
        assert f"is {float(cells(text, 'with attributes')[0]):.4g}" in " ".join(text.split())
    before = np.cumsum(value)[:-1] / np.arange(1, entries)  # the mean of all values before each one
    floor = np.sqrt(np.mean((value[1:] - before)[scored.start - 1 :] ** 2))
    assert cells(text, "mean")[0] == f"{floor:.4g}"
    assert float(spider[0]) < float(cells(text, "online biases")[0]) < floor


def check_model(out: Path, dataset: Dataset, entries: int) -> SpiderRegressor:
    model = spidertensor.load(out / f"{dataset.name}.spider")
    ids, value = raw_stream(dataset, entries)
    assert isinstance(model, SpiderRegressor)
    assert model.n_entries_ == entries
    assert tuple(model.feature_names_in_) == dataset.modes
    at_once = SpiderRegressor(passes=1).fit(ids, value)
    np.testing.assert_array_equal(model.predict(ids[:50]), at_once.predict(ids[:50]))
    return model


def check_extremes(text: str, model: SpiderRegressor, ids: pa.Table) -> None:
    mean, var, noise = model.predict_parts(ids)
    for entry in (np.argmax(var), np.argmin(var)):
        row = " +".join(map(str, ids.slice(int(entry), 1).to_pylist()[0].values()))
        expected = re.escape(f"{mean[entry]:.2f} ± {np.sqrt(var[entry]):.2f}")
        assert re.search(rf"{row} +{expected} +± {np.sqrt(var[entry] + noise[entry]):.2f}", text)


def check_leader(text: str, model: SpiderRegressor) -> None:
    leader = max(model.members_, key=lambda member: member.weight)
    (said,) = re.findall(r"the one with (.*?) leads, with a weight of (\d+) %", " ".join(text.split()))
    assert said[1] == f"{100 * leader.weight:.0f}"
    own = Prior().get_params() | leader.own
    words = [f"bias var {own['bias_var']:g}", f"pair var {own['multilinear_var']:g}"]
    words += [f"memory {own['memory']:,}"] if own.get("memory") else []
    assert said[0].split(", ") == words


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
def test_flights(tmp_path):
    try:
        dataset = load("flights")
    except DatasetError:
        pytest.skip("the flights are not here")
    n = 20_000
    text = printed(tmp_path, n)
    check_scores(text, dataset, n)
    model = check_model(tmp_path, dataset, n)
    check_extremes(text, model, raw_stream(dataset, n)[0])
    check_leader(text, model)
    assert "2,000 flights, is not scored" in text
    assert "although that plane may not have landed yet" in " ".join(text.split())
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
    n = 10_000
    text = printed(tmp_path, n)
    dataset = load("synthetic")
    assert "this is a synthetic stream" in text.splitlines()[0]
    assert "minutes" not in text
    check_scores(text, dataset, n)
    model = check_model(tmp_path, dataset, n)
    check_extremes(text, model, raw_stream(dataset, n)[0])
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
    text = printed(tmp_path, 5)
    assert "5 of 5 entries" in text
    assert spidertensor.load(tmp_path / "synthetic.spider").n_entries_ == 5
