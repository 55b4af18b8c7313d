"""What is counted of the entries learned: of each node, and errors over time, against plain loops."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest

import spidertensor
from spidertensor import Context, Number, SpiderClassifier, SpiderRegressor, checkpoint
from spidertensor.checkpoint import CheckpointError

SIZES = {"rank": 2, "hidden": (4,), "multilinear": 2, "committee": 2}


def entries(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.integers((20, 9), size=(n, 2))
    return X, np.sin(X[:, 0]) + np.cos(X[:, 1]) + 0.3 * rng.normal(size=n)


def counted(X: np.ndarray, mode: int) -> dict[int, tuple[int, int]]:
    """By id: in how many entries it was learned, and the number of the last."""
    return {
        node: (int((X[:, mode] == node).sum()), int(np.flatnonzero(X[:, mode] == node)[-1]) + 1)
        for node in np.unique(X[:, mode]).tolist()
    }


def of_table(model, mode: int) -> dict[int, tuple[int, int]]:
    table = model.nodes(mode)
    return dict(zip(table["id"], zip(table["entries"], table["last"], strict=True), strict=True))


def plain_curve(y, update, size: int) -> list[tuple[float, ...]]:
    """entries, error, floor and coverage of each block."""
    found = []
    for first in range(0, len(y), size):
        last = min(first + size, len(y))
        error = np.sqrt(np.mean((y[first:last] - update.mean[first:last]) ** 2))
        before = [y[:i].mean() if i else update.mean[0] for i in range(first, last)]
        floor = np.sqrt(np.mean((y[first:last] - before) ** 2))
        inside = np.mean(abs(update.below[first:last] - 0.5) <= 0.45)
        found.append((last, error, floor, inside))
    return found


@pytest.mark.parametrize(("n", "size"), [(100, 16), (2048, 16), (2049, 32), (5000, 64)])
def test_the_curve_is_that_of_the_predictions(n, size):
    X, y = entries(n)
    model = SpiderRegressor(**SIZES)
    update = model.learn(X, y)
    curve = model.learning_curve_
    assert curve.metric == "rmse"
    assert len(curve.entries) <= 128
    assert f"{n:,} entries" in repr(curve)
    np.testing.assert_allclose(np.transpose(curve[:4]), plain_curve(y, update, size), rtol=1e-9)


def test_cuts_and_files_change_nothing(tmp_path):
    X, y = entries(3000)
    whole = SpiderRegressor(**SIZES, scaling=(0, 1)).partial_fit(X, y)
    cut = SpiderRegressor(**SIZES, scaling=(0, 1))
    for number, part in enumerate(np.split(np.arange(3000), [1, 7, 600, 601, 1700, 2900])):
        if number % 2:
            cut.partial_fit(X[part], y[part])
        else:
            for ids, value in zip(X[part].tolist(), y[part].tolist(), strict=True):
                cut.learn_one(tuple(ids), value)
        if number == 3:
            cut.save(tmp_path / "half")
            cut = spidertensor.load(tmp_path / "half")
        cut = copy.deepcopy(cut)
    for one, other in zip(whole.learning_curve_, cut.learning_curve_, strict=True):
        assert np.array_equal(one, other)
    for mode in (0, 1):
        assert of_table(whole, mode) == of_table(cut, mode) == counted(X, mode)
    whole.save(tmp_path / "whole")
    cut.save(tmp_path / "cut")
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "cut").read_bytes()


def test_evicted_and_forgotten_nodes_begin_anew():
    X, y = entries(700)
    model = SpiderRegressor(**SIZES, max_nodes=(None, 4)).partial_fit(X, y)
    for row in np.array_split(np.arange(700), 9):
        model.partial_fit(X[row], y[row])
    both, recent = np.concatenate([X, X]), []
    for node in both[::-1, 1].tolist():
        if node not in recent:
            recent.append(node)
        if len(recent) == 4:
            break
    table = of_table(model, 1)
    assert set(table) == set(recent)
    for node, (count, last) in table.items():
        since, known = 0, []  # as a plain list of the four latest
        for each in both[:, 1].tolist():
            if each not in known and len(known) == 4 and known.pop(0) == node:
                since = 0
            known = [other for other in known if other != each] + [each]
            since += each == node
        assert (count, last) == (since, np.flatnonzero(both[:, 1] == node)[-1] + 1)
    model.forget(0, [3, 11])
    left = counted(both, 0)
    del left[3], left[11]
    assert of_table(model, 0) == left
    assert model.explain((0, recent[0])).parts[1].entries == left[0][0]
    assert model.explain((3, recent[0])).parts[1].entries == 0


@pytest.mark.parametrize("when", [None, "at"])
def test_passes_count_an_entry_once(when):
    X, y = entries(1500)
    at = np.random.default_rng(1).permutation(1500)
    table = {"user": X[:, 0], "film": X[:, 1]} | ({"at": at} if when else {})
    modes = {"user": [], "film": []}
    model = SpiderRegressor(**SIZES, passes=3, time=when, modes=modes).fit(table, y)
    wanted = counted(X[np.argsort(at)] if when else X, 1)
    assert of_table(model, 1) == wanted
    assert model.learning_curve_.entries[-1] == 1500


def test_labels_have_log_loss_and_their_share_as_the_floor():
    X, y = entries(400)
    labels = np.where(y > 0.5, "yes", "no")
    model = SpiderClassifier(**SIZES)
    update = model.learn(X, labels)
    curve = model.learning_curve_
    assert curve.metric == "log_loss"
    np.testing.assert_allclose(curve.error, -update.log_evidence.reshape(-1, 16).mean(axis=1))
    ones = labels == "yes"
    share = (np.cumsum(ones) - ones + 0.5) / np.arange(1, 401)
    floor = -np.log(np.where(ones, share, 1 - share)).reshape(-1, 16).mean(axis=1)
    np.testing.assert_allclose(curve.floor, floor)
    assert np.isnan(curve.coverage).all()


def test_events_count_themselves_not_what_is_drawn():
    X, _ = entries(600)
    model = SpiderClassifier(**SIZES, negatives=2, negatives_over=1, passes=1).fit(X)
    assert of_table(model, 1) == counted(X, 1)
    assert np.isnan(model.learning_curve_.floor).all()


def test_a_mode_without_ids_and_values_out_of_bounds():
    X, y = entries(300)
    model = SpiderRegressor(**SIZES, modes={"user": [], "when": Context(Number("hour"))}, bounds="seen")
    update = model.learn({"user": X[:, 0], "hour": X[:, 1] / 3}, y)
    assert of_table(model, 0) == counted(X, 0)
    assert not len(model.nodes("when")["entries"])
    before = [(y[:i].min(), y[:i].max()) if i else (-np.inf, np.inf) for i in range(300)]
    error = y - np.clip(update.mean, *np.transpose(before))
    wanted = [np.sqrt(np.mean(error[i : i + 16] ** 2)) for i in range(0, 300, 16)]
    np.testing.assert_allclose(model.learning_curve_.error, wanted)


def test_what_a_file_does_not_tell_is_missing_not_0(tmp_path):
    X, y = entries(200)
    model = SpiderRegressor(**SIZES).partial_fit(X, y)
    model.save(tmp_path / "model")
    file = checkpoint.load(tmp_path / "model")
    kept = {name: array for name, array in file.arrays.items() if not name.startswith("tally/")}
    sections = {name: each for name, each in file.sections.items() if name != "tally"}
    checkpoint.save(tmp_path / "old", kept, sections, {"calibration", "noise"})
    old = spidertensor.load(tmp_path / "old")
    assert not len(old.learning_curve_.entries)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old.partial_fit([(0, 0), (100, 0)], [0.0, 1.0])
    table = of_table(old, 0)
    assert table.pop(100) == (1, 202)
    assert np.isnan(table[0][0])
    assert table.pop(0)[1] == 201
    assert np.isnan(list(table.values())).all()
    assert old.explain((1, 0)).parts[1].entries is None
    assert old.learning_curve_.entries.tolist() == [202]
    for name in file.arrays:
        if name.startswith("tally/"):
            damaged = file.arrays | {name: file.arrays[name][:-1]}
            checkpoint.save(tmp_path / "bad", damaged, file.sections, {"calibration", "noise", "tally"})
            with pytest.raises(CheckpointError):
                spidertensor.load(tmp_path / "bad")


def test_a_large_model_whose_curve_is_not_known_is_saved_and_loaded(tmp_path):
    X, y = entries(3000)  # more than the blocks of a new curve have room for
    SpiderRegressor(**SIZES).partial_fit(X, y).save(tmp_path / "model")
    file = checkpoint.load(tmp_path / "model")
    kept = {name: array for name, array in file.arrays.items() if not name.startswith("tally/")}
    sections = {name: each for name, each in file.sections.items() if name != "tally"}
    checkpoint.save(tmp_path / "old", kept, sections, {"calibration", "noise"})
    spidertensor.load(tmp_path / "old").save(tmp_path / "again")
    again = spidertensor.load(tmp_path / "again")
    again.partial_fit(X[:50], y[:50])
    assert again.learning_curve_.entries.tolist() == [3008, 3040, 3050]  # by 32


IMPOSSIBLE = {
    "errors below 0": ("sums", np.s_[:, 1], -5.0),
    "an error whose sum overflows": ("sums", np.s_[0, 1], 1.7e308),
    "parts of entries": ("sums", np.s_[:, 0], 0.5),
    "more entries than learned": ("sums", np.s_[:, 0], 1e18),
    "more inside than have an interval": ("sums", np.s_[:, 4], 17.0),
    "entries after the last": ("sums", np.s_[-1], 1.0),
    "blocks of no known size": ("size", 0, 17),
    "blocks larger than ever needed": ("size", 0, 2**54),
    "no entries": ("values", 0, 0.0),
    "a sum beyond the range": ("values", 1, -1e9),
    "a range from top to bottom": ("values", np.s_[2:], [1.0, -1.0]),
    "a range at the end of the numbers": ("values", np.s_[1:], [1e308, 1e306, 1e306]),
}  # fmt: skip


def changed(path, name: str, where, value):
    file = checkpoint.load(path)
    array = file.arrays[f"tally/{name}"].copy()
    array[where] = value
    arrays = file.arrays | {f"tally/{name}": array}
    checkpoint.save(path, arrays, file.sections, {"calibration", "noise", "tally"})
    return spidertensor.load(path)


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_a_curve_that_cannot_be_is_refused(case, tmp_path):
    X, y = entries(400)
    SpiderRegressor(**SIZES, bounds="seen").partial_fit(X, y).save(tmp_path / "model")
    name, where, value = IMPOSSIBLE[case]
    with pytest.raises(CheckpointError, match="learning curve is impossible"):
        changed(tmp_path / "model", f"curve/{name}", where, value)


@pytest.mark.parametrize("wild", [2**63 - 1, -1, -(2**63)])
def test_counts_that_cannot_be_are_kept_in_range(wild, tmp_path):
    X, y = entries(400)
    SpiderRegressor(**SIZES).partial_fit(X, y).save(tmp_path / "model")
    changed(tmp_path / "model", "latest/0", np.s_[:], wild)
    model = changed(tmp_path / "model", "entries/0", np.s_[:], wild)
    model.partial_fit(X, y)  # -1 and one more entry would be 0
    found = np.array(list(of_table(model, 0).values()))
    assert ((found[:, 0] >= 400) & (found[:, 0] <= 800)).all() if wild > 0 else np.isnan(found[:, 0]).all()
    assert ((found[:, 1] > 400) & (found[:, 1] <= 800)).all()


def test_a_notebook_and_a_figure_show_the_curve():
    X, y = entries(2000)
    model = SpiderRegressor(**SIZES).partial_fit(X, y)
    html = model._repr_html_()
    for words in (
        "RMSE just before learning",
        "by the mean so far",
        "in their 90 % intervals",
        "<svg",
        "weight",
    ):
        assert words in html
    assert "nan" not in html
    axes = model.learning_curve_.plot()
    drawn, floor = (line.get_ydata() for line in axes.lines)
    assert np.array_equal(drawn, model.learning_curve_.error)
    assert np.array_equal(floor, model.learning_curve_.floor)
    events = SpiderClassifier(**SIZES, negatives=2, negatives_over=1, passes=1).fit(X)
    assert len(events.learning_curve_.plot().lines) == 1
    assert "nan" not in events._repr_html_()
    assert "<svg" not in SpiderRegressor(**SIZES).partial_fit(X[:9], y[:9])._repr_html_()
