"""Figures and the page: what is shown is what the rows say, axes have labels, nothing is cut off."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from spidertensor.cli.errors import CommandError
from spidertensor.evaluation import draw, floors
from spidertensor.evaluation.protocols import prequential
from spidertensor.evaluation.styles import PALETTE
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT
from spidertensor_study import registry, report
from spidertensor_study import rows as rows_in_files
from spidertensor_study.cli.report import report as command
from spidertensor_study.datasets import synthetic
from spidertensor_study.registry import METHODS as NAMED
from spidertensor_study.report import (
    claims,
    insight,
    markdown,
    page,
    panels,
    runs,
    scores,
    standing,
    tables,
)

pytest.importorskip("matplotlib")

METHODS = {"biases": floors.biases(3, GAUSSIAN), "mean": floors.mean(GAUSSIAN)}


@pytest.fixture(scope="module")
def rows_by_method():
    stream = synthetic(n_entries=2_000).in_time_order()
    return {
        name: list(prequential(method, stream, likelihood=GAUSSIAN, batch_size=50, at=8))
        for name, method in METHODS.items()
    }


@pytest.fixture
def figure(rows_by_method):
    return draw.overview(rows_by_method, entries="flights", unit="minutes")


def test_running_curves_are_the_window_scores(figure, rows_by_method):
    lines = figure.axes[0].get_lines()
    assert len(lines) == len(rows_by_method)
    for line, rows in zip(lines, rows_by_method.values(), strict=True):
        np.testing.assert_array_equal(line.get_xdata(), [row["n_entries"] for row in rows])
        np.testing.assert_array_equal(line.get_ydata(), [row["window_score"] for row in rows])


def test_calibration_is_that_of_the_last_row_beside_the_diagonal(figure, rows_by_method):
    diagonal, *lines = figure.axes[1].get_lines()
    np.testing.assert_array_equal(diagonal.get_xydata(), [[0, 0], [1, 1]])
    assert len(lines) == len(rows_by_method)
    for line, rows in zip(lines, rows_by_method.values(), strict=True):
        np.testing.assert_array_equal(line.get_xydata(), rows[-1]["calibration"])


CALIBRATED = [[0.1, 0.1], [0.5, 0.49], [0.9, 0.91]]


def test_a_calibrated_curve_is_drawn_beside_the_plain_one(rows_by_method):
    rows = [*rows_by_method["biases"][:-1], rows_by_method["biases"][-1] | {"calibrated": CALIBRATED}]
    calibration = draw.overview(rows_by_method | {"biases": rows}).axes[1]
    assert legend(calibration) == ["ideal", "biases", "biases, calibrated", "mean"]
    _, plain, calibrated, _ = calibration.get_lines()
    np.testing.assert_array_equal(plain.get_xydata(), rows_by_method["biases"][-1]["calibration"])
    np.testing.assert_array_equal(calibrated.get_xydata(), CALIBRATED)
    assert plain.get_color() == calibrated.get_color()
    assert calibrated.get_markerfacecolor() == "white" != plain.get_markerfacecolor()


WEIGHTS = ([0.25, 0.25, 0.5], [0.125, 0.5, 0.375])


def test_the_weights_of_members_are_areas_that_fill_the_panel():
    from matplotlib.figure import Figure

    n_entries = [50, 100]
    axes = Figure().subplots()
    draw.draw_members(axes, [{"n_entries": n, "members": w} for n, w in zip(n_entries, WEIGHTS, strict=True)])
    for number, area in enumerate(axes.collections):
        corners = area.get_paths()[0].vertices
        for n, here in zip(n_entries, WEIGHTS, strict=True):
            ends = corners[corners[:, 0] == n][:, 1]
            assert (ends.min(), ends.max()) == pytest.approx((sum(here[:number]), sum(here[: number + 1])))
    assert len(axes.collections) == 3
    assert (axes.get_xlim(), axes.get_ylim()) == ((0, 100), (0, 1))
    assert len({tuple(area.get_facecolor()[0]) for area in axes.collections}) == 3


def test_labels_have_units_and_legends_all_methods(figure, rows_by_method):
    curves, calibration = figure.axes
    assert curves.get_xlabel() == "flights learned so far"
    assert curves.get_ylabel() == "RMSE of each window (minutes)"
    assert calibration.get_xlabel() == "nominal share of an interval"
    assert calibration.get_ylabel() == "share of values inside it"
    assert all(axes.get_title() for axes in figure.axes)
    scores = [f"{name}: {rows[-1]['score']:.3g} minutes" for name, rows in rows_by_method.items()]
    assert legend(curves) == [*scores, "not in the score"]
    assert curves.get_title() == "RMSE, next entry"
    assert legend(calibration) == ["ideal", *rows_by_method]


def test_without_a_unit_there_is_none(rows_by_method):
    curves = draw.overview(rows_by_method).axes[0]
    assert curves.get_xlabel() == "entries learned so far"
    assert curves.get_ylabel() == "RMSE of each window"
    assert legend(curves)[0] == f"biases: {rows_by_method['biases'][-1]['score']:.3g}"


def test_the_skipped_tenth_is_shaded(figure):
    (shade,) = figure.axes[0].patches
    assert (shade.get_x(), shade.get_width()) == (0, 200)


def test_methods_differ_without_colour():
    assert len({str(style.linestyle) for style in PALETTE}) == len(PALETTE)
    assert len({style.marker for style in PALETTE}) == len(PALETTE)


def test_nothing_is_cut_off_and_no_legend_hides_a_curve(figure):
    figure.draw_without_rendering()
    whole = figure.bbox
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert whole.x0 <= box.x0 < box.x1 <= whole.x1
        assert whole.y0 <= box.y0 < box.y1 <= whole.y1
        frame = axes.get_legend().get_window_extent()
        for line in axes.get_lines():
            points = line.get_transform().transform(line.get_xydata())
            assert not any(frame.contains(*point) for point in points)


def test_a_single_row_is_a_visible_point(rows_by_method):
    last = {name: rows[-1:] for name, rows in rows_by_method.items()}
    markers = [line.get_marker() for line in draw.overview(last).axes[0].get_lines()]
    assert markers == [style.marker for style in PALETTE[: len(markers)]]


def test_binary_rows_too():
    stream = synthetic(n_entries=2_000, likelihood=PROBIT).in_time_order()
    rows = list(prequential(floors.biases(3, PROBIT), stream, likelihood=PROBIT, batch_size=50, at=4))
    figure = draw.overview({"biases": rows})
    curves, calibration = figure.axes
    assert curves.get_ylabel() == "AUC of each window"
    assert calibration.get_xlabel() == "predicted probability"
    assert calibration.get_ylabel() == "share of ones"
    np.testing.assert_array_equal(calibration.get_lines()[1].get_xydata(), rows[-1]["calibration"])


def test_a_window_without_a_score_is_a_gap(rows_by_method, tmp_path):
    rows = [row | {"window_score": math.nan} for row in rows_by_method["mean"][:1]] + rows_by_method["mean"][
        1:
    ]
    figure = draw.overview({"mean": rows})
    figure.savefig(tmp_path / "gap.png")
    assert np.isnan(figure.axes[0].get_lines()[0].get_ydata()[0])


def test_no_pyplot_and_nothing_loaded_by_import():
    code = (
        "import sys; from spidertensor.evaluation import draw; from spidertensor_study import report; "
        "assert 'matplotlib' not in sys.modules; "
        "row = dict(metric='rmse', case='', n_entries=1, window_score=1, score=1, skipped=0); "
        "row['calibration'] = [[0, 0]]; "
        "draw.overview({'a': [row]}); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def legend(axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


# The page of experiments


def row(method, data, score, *, experiment="grid", protocol="held-out", rank=8, seed=0, **more):
    """A row as `spider-study experiment` writes it."""
    auc = data in ("anime", "dblp")
    entry = {
        "metric": "auc" if auc else "rmse", "score": score, "log_density": -score, "n_entries": 1000,
        "coverage_50": None if auc else 0.5, "coverage_90": None if auc else 0.88,
        "calibration_error": 0.02 if auc else None, "calibration": [[0.25, 0.2], [0.75, 0.8]],
        "seconds": 0.002, "rejected": 0,
    }  # fmt: skip
    tests = ["stream"] if protocol == "prequential" else ["paper", "clean"] if data == "acc" else ["paper"]
    curve = [
        {"n_entries": n, "seconds": n * 2e-6, "window": score + 0.1 / n} | dict.fromkeys(tests, score + 1 / n)
        for n in (250, 500, 750, 1000)
    ]
    settings = {
        "method": method, "data": data, "protocol": protocol, "rank": rank,
        "batch_size": 256, "seed": seed, "at": 4, "entries": None,
    }  # fmt: skip
    about = {
        "version": "0.1.0",
        "commit": "abc1234",
        "machine": "two cores",
        "finished": "2026-11-15T14:00:00Z",
    }
    return {
        "experiment": experiment, "settings": settings, "scores": dict.fromkeys(tests, entry), "curve": curve,
        "weights": None, "error": None, "seconds": 0.1, "wall_seconds": 0.2, "jobs": 1, **about, **more,
    }  # fmt: skip


def many_rows():
    scores = {"spider-paper": (0.36, 0.9), "post": (0.41, 0.75), "svb-dtf": (0.45, 0.5), "mean": (1.0, 0.5)}
    rows = [
        row(method, data, score + 0.01 * seed, rank=rank, seed=seed)
        for method, both in scores.items()
        for data, score in zip(("acc", "dblp"), both, strict=True)
        for rank in (3, 8)
        for seed in range(1 if method == "svb-dtf" else 2)
    ]
    rows += [row(method, "acc", 0.4, experiment="time") for method in scores]
    rows += [row(method, "flights", 33.0, protocol="prequential") for method in scores]
    layer = {"inclusion": [[0.1, 0.9], [0.2, 0.8]], "mean": [[0.0, 0.9], [0.1, -0.5]]}
    rows.append(row("spider-paper", "acc", 0, protocol="weights", scores=None, weights=[layer, layer]))
    return rows


@pytest.fixture(autouse=True, scope="module")
def few_dots():
    """Replaces every figure of a page: nobody looks at them here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "DOTS_PER_INCH", 40)
        yield


class Parsed(HTMLParser):
    """Checks that tags are balanced, and keeps what matters of them."""

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.links = [], "", []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return report.write(many_rows(), tmp_path_factory.mktemp("report") / "new")


def test_the_page_needs_nothing_else(written):
    text = written[0].read_text(encoding="utf-8")
    assert "<script" not in text
    assert "url(" not in text
    links = Parsed(text).links
    assert links
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in links)
    anchors = {link[1:] for link in links if link.startswith("#")}
    assert all(f'id="{anchor}"' in text for anchor in anchors)


def test_every_figure_is_a_file_too(written):
    names = [path.name for path in written]
    assert names == [
        "report.html", "claims.md", "standing.png", "figure-1.png", "figure-2.png", "time.png", "scaling.png",
        "weights-1.png", "calibration.png", "prequential.png",
    ]  # fmt: skip
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written[2:])
    assert written[0].read_text(encoding="utf-8").count("<img alt=") == len(names) - 2


def test_a_reader_finds_the_contents_then_the_claims_then_the_figures(written):
    text = written[0].read_text(encoding="utf-8")
    places = [
        text.index(part) for part in ("<nav", 'id="claims"', 'id="grid"', 'id="running"', 'id="tables"')
    ]
    assert places == sorted(places)
    contents = Parsed(text[places[0] : text.index("</nav>") + len("</nav>")]).links
    assert contents == [f"#{anchor}" for anchor in re.findall(r'<h2 id="([^"]+)"', text)]


def test_the_page_says_what_was_run(written):
    text = Parsed(written[0].read_text(encoding="utf-8")).text
    for said in ("abc1234", "two cores", "0.3650 ± 0.0071 (2 seeds)", "0.4500 (1 seed)", "abc1234"):
        assert said in text
    assert "learned from the first" not in text


def test_hostile_rows_are_text(tmp_path):
    bad = "<script>alert(1)</script>"
    rows = [
        row("post", bad, 0.5),
        row("post", "acc", 0.5, experiment=bad),
        row("post", "acc", 0, scores=None, error=bad, machine=bad),
        row(bad, bad, 0.5, experiment="approximations"),
    ]
    text = report.write(rows, tmp_path)[0].read_text(encoding="utf-8")
    assert "<script" not in text
    assert Parsed(text).text.count(bad) > 3


def test_one_method_on_one_data_set_and_a_quick_run(tmp_path):
    one = row("spider", "acc", 0.4)
    one["settings"] |= {"entries": 5000}
    text = Parsed(report.write([one], tmp_path)[0].read_text(encoding="utf-8")).text
    assert "learned from the first 5,000 entries only" in text
    assert "Not run: Running time; Sparse posterior" in text
    assert "These runs were cut short" not in text  # there is no verdict that could mislead
    two = [one, row("post", "acc", 0.5)]
    text = Parsed(report.write(two, tmp_path)[0].read_text(encoding="utf-8")).text
    assert "These runs were cut short" in text
    assert "Not run. Nothing was run for it." in text  # of the other claims


def test_a_grid_of_ones_own_is_drawn_too(tmp_path):
    """On other data sets than the paper's there are the figures, and none of its claims."""
    rows = [
        row(method, "movielens-100k", 0.9, seed=seed) for method in ("spider", "biases") for seed in (0, 1)
    ]
    paths = report.write(rows, tmp_path)
    assert {"figure-1.png", "figure-2.png"} <= {path.name for path in paths}
    assert 'id="claims"' not in paths[0].read_text(encoding="utf-8")


def test_a_panel_for_which_nothing_was_run_says_so():
    rows = [row("post", "acc", 0.4), row("post", "dblp", 0.8)]
    rows[1]["settings"] |= {"rank": 3}
    figure = scores.on_the_fly(runs.runs(rows))
    assert [notes(axes) for axes in figure.axes] == [["not run"], [], [], ["not run"]]


def test_failed_rows_alone_make_a_page(tmp_path):
    paths = report.write([row("post", "acc", 0, scores=None, error="ValueError: no")], tmp_path)
    assert [path.name for path in paths] == ["report.html"]
    assert "ValueError: no" in Parsed(paths[0].read_text(encoding="utf-8")).text


def test_what_is_not_a_number_is_null_in_a_row_and_does_no_harm(tmp_path):
    rows = json.loads(json.dumps(many_rows()))
    for broken in rows[:2]:
        for score in (broken["scores"] or {}).values():
            score |= {"score": None, "log_density": None, "calibration": [[0.5, None]]}
        broken["curve"] = [point | {"paper": None} for point in broken["curve"]]
    assert "not a number" in report.write(rows, tmp_path)[0].read_text(encoding="utf-8")


def test_an_empty_cell_says_so_and_the_best_is_marked():
    rows = [row("post", "acc", 0.4), row("spider", "acc", 0.3), row("post", "anime", 0.8)]
    (table,) = tables.scores(runs.runs(rows))
    assert table.columns == ["numbers per node", "acc published RMSE", "acc clean RMSE", "anime AUC"]
    assert [entries[0].text for _, entries in table.rows] == ["406", "44"]
    assert [(name, entries[1:]) for name, entries in table.rows] == [
        ("spidertensor default", [("0.3000 (1 seed)", True)] * 2 + [(tables.NOT_RUN, False)]),
        ("POST", [("0.4000 (1 seed)", False)] * 2 + [("0.8000 (1 seed)", True)]),
    ]


def test_coverage_is_best_nearest_its_level_and_only_of_continuous_values():
    rows = [row("post", "acc", 0.4), row("spider", "acc", 0.3), row("post", "anime", 0.8)]
    rows[0]["scores"]["paper"] = rows[0]["scores"]["paper"] | {"coverage_90": 0.99}
    published, clean = covered(tables.details(runs.runs(rows)))
    assert (published.caption[-13:], clean.caption[-9:]) == ("acc published", "acc clean")
    assert published.columns == clean.columns == ["50 %", "90 %"]
    assert published.rows == [
        ("spidertensor default", [("50.0 % (1 seed)", True), ("88.0 % (1 seed)", True)]),
        ("POST", [("50.0 % (1 seed)", True), ("99.0 % (1 seed)", False)]),
    ]


def covered(found):
    return [table for table in found if "inside intervals" in table.caption]


def test_calibrated_coverage_stands_below_the_plain_one_with_the_worst_windows():
    levels = {50: 0.64, 80: 0.88, 90: 0.93, 95: 0.95, 99: 0.97}
    both = {f"coverage_{percent}": share for percent, share in levels.items()}
    both |= {f"calibrated_{percent}": percent / 100 for percent in levels}
    both |= {"calibrated_90_lowest": 0.87, "calibrated_90_highest": 0.92}
    rows = [row(method, "flights", 33.0, protocol="prequential") for method in ("spider", "mean")]
    rows[0]["scores"]["stream"] = rows[0]["scores"]["stream"] | both
    (table,) = covered(tables.prequential(runs.runs(rows)))
    windows = ["90 %, lowest window", "90 %, highest window"]
    assert table.columns == ["50 %", "80 %", "90 %", "95 %", "99 %", *windows]
    assert [name for name, _ in table.rows] == [
        "spidertensor default",
        "spidertensor default, calibrated",
        "mean",
    ]
    shown = [[entry.text.removesuffix(" (1 seed)") for entry in entries] for _, entries in table.rows]
    assert shown == [
        ["64.0 %", "88.0 %", "93.0 %", "95.0 %", "97.0 %", "not run", "not run"],
        ["50.0 %", "80.0 %", "90.0 %", "95.0 %", "99.0 %", "87.0 %", "92.0 %"],
        ["50.0 %", "not run", "88.0 %", "not run", "not run", "not run", "not run"],
    ]
    assert not any(entry.best for _, entries in table.rows for entry in entries[5:])
    assert "5,000 entries" in table.note


def test_rows_from_before_there_were_calibrated_intervals_are_read_and_shown():
    every = rows_in_files.read([Path(__file__).parents[1] / "results" / "prequential.jsonl.gz"])
    old = [row for row in every if "calibrated_50" not in row["scores"]["stream"]]
    assert 0 < len(old) < len(every)
    shown = covered(tables.prequential(runs.runs(old)))
    assert shown
    for table in shown:
        assert table.columns == ["50 %", "90 %"]
        assert not any("calibrated" in name for name, _ in table.rows)
        assert "window" not in table.note
    assert insight.members(runs.runs(old)) is None


FIGURES = {
    "over_grid": scores.over_grid, "on_the_fly": scores.on_the_fly, "in_time_order": scores.in_time_order,
    "scaling": insight.scaling, "calibration": insight.calibration, "speed": insight.speed,
    "standing": standing.standing,
}  # fmt: skip


@pytest.mark.parametrize("name", FIGURES)
def test_axes_have_labels_and_nothing_is_cut_off(name):
    figure = FIGURES[name](runs.runs(many_rows()))
    figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in figure.axes if axes.get_visible()]
    boxes += [each.get_window_extent() for each in figure.legends]
    for box in boxes:
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
    below = figure.axes[-len(figure.axes) // 2 :] if name == "on_the_fly" else figure.axes
    assert all(axes.get_xlabel() for axes in below)
    assert any(axes.get_ylabel() for axes in figure.axes) or name in ("speed", "standing")  # lines with names
    for each in figure.legends:
        assert len({text.get_text() for text in each.get_texts()}) == len(each.get_texts())
    assert FIGURES[name]([]) is None


def test_figure_1_has_a_line_for_every_method_and_means_over_seeds():
    figure = scores.over_grid(runs.runs(many_rows()))
    over_rank, over_size = figure.axes[:2]  # acc
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["acc", "acc", "dblp", "dblp"]
    lines = [line for line in over_rank.get_lines() if line.get_linestyle() != "None"]
    assert len(lines) == 4
    np.testing.assert_allclose(lines[0].get_ydata(), [0.365, 0.365])
    assert len(over_rank.containers) == 2  # error bars, none for one seed and for a floor
    assert over_rank.get_ylabel() == "RMSE, lower is better"
    assert figure.axes[2].get_ylabel() == "AUC, higher is better"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "SPIDER-ReLU",
        "POST",
        "SVB-DTF",
    ]
    assert notes(over_rank) == notes(over_size) == ["↑ off scale: mean 1"]


def notes(axes) -> list[str]:
    """What is written between the name of a panel and the panel."""
    return [text.get_text().replace("\N{NO-BREAK SPACE}", " ") for text in axes.texts]


def test_figures_1_and_2_are_of_the_grid_on_the_data_sets_of_the_paper():
    rows = [row("post", "acc", 0.4)]
    others = [row("first-order", "acc", 0.4)]
    others += [
        row("svb-dtf", "acc", 0.4, experiment=name) for name in ("time", "tuning", "approximations-tanh")
    ]
    assert scores.over_grid(runs.runs(others)) is None
    assert scores.on_the_fly(runs.runs(others)) is None
    assert insight.calibration(runs.runs(others)) is None
    others.append(row("post", "movielens-100k", 0.9))
    for draw_figure in (scores.over_grid, scores.on_the_fly, insight.calibration):
        figure = draw_figure(runs.runs(rows + others))
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["POST"]
        assert {axes.get_title(loc="left")[:3] for axes in figure.axes} == {"acc"}


def test_every_method_that_can_be_run_has_a_label():
    assert set(runs.LABELS) == set(NAMED)


def test_a_method_run_at_one_batch_size_is_not_drawn_over_batch_sizes():
    """A single dot shows nothing of what is varied, and there would be many."""
    rows = [row("post", "acc", 0.4), row("svb-dtf", "acc", 0.5)]
    over_size = scores.over_grid(runs.runs(rows)).axes[1]
    assert len(over_size.get_lines()) == 2  # nothing is varied at all
    rows.append(row("post", "acc", 0.4))
    rows[-1]["settings"] |= {"batch_size": 64}
    over_size = scores.over_grid(runs.runs(rows)).axes[1]
    assert [list(line.get_ydata()) for line in over_size.get_lines()] == [[0.4, 0.4]]


def test_where_the_methods_stand_is_told_for_every_method():
    rows = [
        row("post", data, score, seed=seed)
        for data in ("acc", "dblp")
        for seed, score in enumerate((0.6, 0.7))
    ]
    rows += [row("spider", "acc", 0.5), row("mean", "acc", 1.5), row("post", "acc", 0.4, rank=3)]
    rows += [row("post", data, 0.6, experiment="time") for data in ("acc", "dblp")]
    figure = standing.standing(runs.runs(rows))
    acc, dblp, cost = figure.axes
    assert [label.get_text() for label in acc.get_yticklabels()] == ["spidertensor default", "POST", "mean"]
    default, post = acc.containers  # errorbars
    assert (default[0].get_xdata()[0], default[0].get_ydata()[0]) == (0.5, 0)
    assert (post[0].get_xdata()[0], post[0].get_ydata()[0]) == (pytest.approx(0.65), 1)
    assert [text.get_text() for text in acc.texts] == ["1.5000 →"]
    assert [text.get_text() for text in dblp.texts] == ["not run", "not run"]
    assert [text.get_text() for text in cost.texts] == ["not timed", "2", "not timed"]
    assert dblp.get_xlabel() == "AUC,\nhigher is better"


def test_figure_2_is_the_mean_of_the_running_scores():
    figure = scores.on_the_fly(runs.runs(many_rows()))
    assert len(figure.axes) == 4
    line = figure.axes[0].get_lines()[0]
    np.testing.assert_array_equal(line.get_xdata(), [250, 500, 750, 1000])
    np.testing.assert_allclose(line.get_ydata(), 0.365 + 1 / np.array([250, 500, 750, 1000]))


def test_methods_off_the_scale_are_named_beside_the_title():
    aucs = {
        "spider-paper": 0.9,
        "spider": 0.91,
        "post": 0.8,
        "cp-wopt": 0.85,
        "svb-dtf": 0.5,
        "svb-gptf": 0.4,
    }
    rows = [row(method, "anime", auc) for method, auc in aucs.items()]
    rows.append(row("mean", "anime", 0.501))
    figure = scores.on_the_fly(runs.runs(rows))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    (note,) = notes(axes)
    assert note.replace("\n", " ") == "↓ off scale: SVB-DTF 0.501; SVB-GPTF 0.401; mean 0.502"
    assert axes.get_title(loc="left") == "anime, rank 8"


def drawn(points_by_method):
    cells = {name: [runs.average([each]) for each in points] for name, points in points_by_method.items()}
    return {name: scores.Points(list(range(len(each))), each, []) for name, each in cells.items()}


@pytest.mark.parametrize("sign", [1, -1])
def test_a_method_that_fails_does_not_set_the_scale(sign):
    metric = "rmse" if sign > 0 else "auc"

    def ends(points_by_method):
        points = {name: [sign * x for x in each] for name, each in points_by_method.items()}
        return sorted(sign * end for end in scores.shown_range([drawn(points)], metric))

    low, high = ends({"a": [1], "b": [1.1], "c": [1.2], "d": [9]})
    assert 0.9 < low < 1 < 1.2 < high < 1.3
    low, high = ends({"a": [1, 1.1], "b": [1.2, 1.2], "c": [1.3, 1.3, 100]})  # works but for one point
    assert 1.3 < high < 1.4
    low, high = ends({"a": [1], "b": [1.1, 3], "mean": [2]})  # worse than the mean
    assert 1.1 < high < 1.2
    low, high = ends({"a": [1.0, 5.0]})  # alone it is shown whole
    assert low < 1 < 5 < high
    low, high = ends({"mean": [1.0]})
    assert low < 1 < high
    assert scores.shown_range([drawn({"a": [math.nan]})], metric) == (0.0, 1.0)


def test_a_bar_of_a_point_that_is_not_shown_is_not_drawn():
    rows = [row("post", "acc", 0.4 + 0.01 * seed, seed=seed) for seed in range(2)]
    rows += [row("spider", "acc", 0.35 + 0.01 * seed, seed=seed) for seed in range(2)]
    rows += [row("ss-gptf", "acc", score, seed=seed) for seed, score in enumerate((20.0, 200.0))]
    axes = scores.over_grid(runs.runs(rows)).axes[0]
    assert len(axes.containers) == 2
    assert notes(axes) == ["↑ off scale: SS-GPTF 110"]
    assert axes.get_ylim()[1] < 1


def test_a_dollar_sign_is_no_mathematics():
    figure = scores.in_time_order(runs.runs([row("post", "a $x_1$ b", 0.5, protocol="prequential")]))
    figure.draw_without_rendering()
    title = figure.axes[0].get_title(loc="left")
    assert title.replace(r"\$", "$") == "a $x_1$ b, rank 8"
    assert "$" not in title.replace(r"\$", "")


def test_the_cap_of_timed_runs_is_no_quick_run(tmp_path):
    rows = [row("post", "acc", 0.4), row("svb-dtf", "acc", 0.4, experiment="time")]
    rows += [row("second-order", "acc", 0.4, experiment="approximations-tanh")]
    for capped in rows[1:]:
        capped["settings"] |= {"entries": 25_600}
    text = Parsed(report.write(rows, tmp_path)[0].read_text(encoding="utf-8")).text
    assert "learned from the first" not in text
    assert "on the first 25,600 entries: SVB-DTF" in text


def test_runs_with_many_rejected_entries_are_listed():
    rows = [row("post", "acc", 0.4, seed=seed) for seed in range(2)]
    assert tables.rejected(runs.runs(rows)) == []
    for test in rows[1]["scores"]:
        rows[1]["scores"][test] = rows[1]["scores"][test] | {"rejected": 30}
    (old,) = tables.rejected(runs.runs(rows))  # rows from before there was a count of refused entries
    for test in rows[1]["scores"]:
        rows[1]["scores"][test] = rows[1]["scores"][test] | {"rejected": 720, "refused": 30}
    (table,) = tables.rejected(runs.runs(rows))
    assert old == table
    assert table.columns == ["experiment", "data", "rank", "batch size", "runs", "most in one run"]
    assert table.rows == [
        ("POST", [(text, False) for text in ("grid", "acc", "8", "256", "1 of 2", "30 (3.0%)")])
    ]


def test_learning_rates_with_the_best_marked_and_the_one_used():
    rows = [row("svb-dtf", "acc", 0.4)]
    rows[0]["settings"] |= {"learning_rate": 0.01}
    for rate, score in ((0.001, 0.6), (0.01, 0.5)):
        tried = row("svb-dtf", "acc", score, experiment="tuning", protocol="prequential")
        tried["settings"] |= {"learning_rate": rate, "protocol": "first-tenth", "epochs": 100}
        rows.append(tried)
    (table,) = tables.tuning(runs.runs(rows))
    assert table.columns == ["0.001", "0.01", "used"]
    assert table.rows == [
        ("SVB-DTF, acc, RMSE", [("0.6000", False), ("0.5000", True), ("0.01", False)]),
    ]
    assert "rank 8, batch size 256, epochs 100, seed 0" in table.note


def test_approximations_have_tables_for_each_activation():
    rows = [
        row("first-order", "acc", 0.4, experiment=experiment)
        for experiment in ("approximations", "approximations-tanh")
    ]
    for each, activation in zip(rows, ("relu", "tanh"), strict=True):
        each["settings"] |= {"activation": activation}
    captions = [table.caption for table in tables.approximations(runs.runs(rows))]
    assert [caption.split(":")[0] for caption in captions] == ["relu"] * 3 + ["tanh"] * 3


def test_calibrated_curves_have_hollow_markers_and_the_legend_says_so():
    rows = [row("spider", "acc", 0.4), row("post", "acc", 0.5)]
    plain = insight.calibration(runs.runs(rows))
    assert [text.get_text() for text in plain.legends[0].get_texts()] == ["spidertensor default", "POST"]
    for test in rows[0]["scores"]:
        rows[0]["scores"][test] = rows[0]["scores"][test] | {"calibrated": CALIBRATED}
    figure = insight.calibration(runs.runs(rows))
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["spidertensor default", "POST", "hollow: calibrated"]
    hollow = [line for line in figure.axes[0].get_lines() if line.get_markerfacecolor() == "white"]
    (line,) = hollow
    np.testing.assert_array_equal(line.get_xydata(), CALIBRATED)


def test_the_members_of_a_committee_in_time_order_have_a_figure(tmp_path):
    rows = [row("spider", data, 0.4, protocol="prequential") for data in ("flights", "movielens-1m")]
    rows += [row(method, "flights", 0.4, protocol="prequential") for method in ("spider-single", "mean")]
    for number, each in enumerate(rows):
        members = (WEIGHTS[0], WEIGHTS[1], [1.0], None)[number]
        each["curve"] = [point | {"members": members} for point in each["curve"]]
    figure = insight.members(runs.runs(rows))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["movielens-1m, spidertensor default", "flights, spidertensor default"]
    assert [len(axes.collections) for axes in figure.axes] == [3, 3]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["model 1", "model 2", "model 3"]
    assert "members.png" in [path.name for path in report.write(rows, tmp_path)]


def test_a_method_looks_the_same_in_every_figure():
    known = panels.method_styles(["POST", "SPIDER-ReLU", "mean"])
    assert known["POST"] == panels.method_styles(["POST"])["POST"]
    styles = [entry.style for entry in registry.METHODS.values()]
    assert len(set(styles)) == len(styles)
    others = panels.method_styles(["POST", "POST, epochs 50", "another one"])
    assert len({(style["color"], style["marker"]) for style in others.values()}) == 3
    assert others["POST, epochs 50"]["color"] == known["POST"]["color"]
    first, second = panels.method_styles(["POST, epochs 5", "POST, epochs 50"]).values()
    assert first == known["POST"]
    assert (second["color"], second["marker"]) != (first["color"], first["marker"])


def test_heat_maps_are_the_inclusion_probabilities():
    (run,) = [run for run in runs.runs(many_rows()) if run.weights]
    figure = insight.sparsity(run)
    np.testing.assert_array_equal(figure.axes[0].get_images()[0].get_array(), run.weights[0]["inclusion"])
    assert figure.axes[0].get_title() == "layer 1: 50% of 4 pruned"


def test_the_command_prints_what_it_wrote(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in many_rows()[:1]))
    command([tmp_path / "rows.jsonl"], tmp_path / "out")
    printed = capsys.readouterr().out.split()
    assert printed[0] == str(tmp_path / "out" / "report.html")
    assert all(Path(path).is_file() for path in printed)


def test_without_matplotlib_the_command_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "rows.jsonl").write_text(json.dumps(many_rows()[0]) + "\n")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(CommandError, match=r"report needs matplotlib.*spidertensor\[plot\]"):
        command([tmp_path / "rows.jsonl"], tmp_path / "out")


def test_claims_in_markdown_have_a_row_each_and_escape_what_would_end_it(tmp_path):
    rows = [
        row(method, "acc", score + size * seed, seed=seed)
        for method, score, size in (("spider-paper", 0.5, 0.001), ("spider-paper-tanh", 0.4, 0.002))
        for seed in range(3)
    ]
    text = report.write(rows, tmp_path)[1].read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(claims.claims([]))
    (relu,) = [line for line in lines if line.startswith("| ReLU is better than tanh")]
    assert "| **Does not hold.** SPIDER-ReLU is worse than SPIDER-tanh on acc." in relu
    assert "µs per entry: SPIDER-ReLU 2 " in relu
    fold = text[text.index("<details><summary>ReLU is better than tanh: does not hold") :]
    assert "loss: acc, rank 8, batch 256: SPIDER-ReLU 0.5010, SPIDER-tanh 0.4020" in fold
    assert text.count("<details>") == text.count("</details>") == 1  # of what was run
    assert markdown._cell("a|b<c") == "a\\|b&lt;c"


def test_times_say_how_many_runs_were_at_it():
    for jobs, said in ((1, "one run at a time"), (4, "up to 4 runs at a time")):
        timed = row("post", "acc", 0.5) | {"experiment": "time", "jobs": jobs}
        (table,) = tables.times(runs.runs([timed]))
        assert said in table.caption


def test_the_engines_have_a_table_of_their_own_and_are_no_methods_of_figure_1():
    both = []
    for engine, score in (("sequential", 0.5), ("vectorized", 0.6)):
        made = row("spider", "acc", score)
        made["settings"]["engine"] = engine
        both.append(made | {"experiment": "engines"})
    found = runs.runs(both)
    assert runs.grid(found) == []
    (table,) = tables.engines(found)
    assert [name for name, _ in table.rows] == [
        "spidertensor default, engine sequential",
        "spidertensor default, engine vectorized",
    ]
