"""Figures: what is drawn is what the rows say, every axis has a label, nothing is cut off."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from spidertensor import report
from spidertensor.baselines import floors
from spidertensor.datasets import synthetic
from spidertensor.evaluate import prequential

pytest.importorskip("matplotlib")

METHODS = {"biases": floors.biases(3, "gaussian"), "mean": floors.mean("gaussian")}


@pytest.fixture(scope="module")
def rows_by_method():
    stream = synthetic(n_entries=2_000).in_time_order()
    return {
        name: list(prequential(method, stream, binary=False, batch_size=50, at=8))
        for name, method in METHODS.items()
    }


@pytest.fixture
def figure(rows_by_method):
    return report.overview(rows_by_method, entries="flights", unit="minutes")


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


def test_labels_have_units_and_legends_all_methods(figure, rows_by_method):
    curves, calibration = figure.axes
    assert curves.get_xlabel() == "flights learned so far"
    assert curves.get_ylabel() == "RMSE of each window (minutes)"
    assert calibration.get_xlabel() == "nominal share of an interval"
    assert calibration.get_ylabel() == "share of values inside it"
    assert all(axes.get_title() for axes in figure.axes)
    scores = [f"{name}: {rows[-1]['score']:.3g} minutes" for name, rows in rows_by_method.items()]
    assert legend(curves) == [*scores, "not in the score"]
    assert legend(calibration) == ["ideal", *rows_by_method]


def test_without_a_unit_there_is_none(rows_by_method):
    curves = report.overview(rows_by_method).axes[0]
    assert curves.get_xlabel() == "entries learned so far"
    assert curves.get_ylabel() == "RMSE of each window"
    assert legend(curves)[0] == f"biases: {rows_by_method['biases'][-1]['score']:.3g}"


def test_the_skipped_tenth_is_shaded(figure):
    (shade,) = figure.axes[0].patches
    assert (shade.get_x(), shade.get_width()) == (0, 200)


def test_methods_differ_without_colour():
    assert len({str(style["linestyle"]) for style in report.STYLES}) == len(report.STYLES)
    assert len({style["marker"] for style in report.STYLES}) == len(report.STYLES)


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
    markers = [line.get_marker() for line in report.overview(last).axes[0].get_lines()]
    assert markers == [style["marker"] for style in report.STYLES[: len(markers)]]


def test_binary_rows_too():
    stream = synthetic(n_entries=2_000, binary=True).in_time_order()
    rows = list(prequential(floors.biases(3, "probit"), stream, binary=True, batch_size=50, at=4))
    figure = report.overview({"biases": rows})
    curves, calibration = figure.axes
    assert curves.get_ylabel() == "AUC of each window"
    assert calibration.get_xlabel() == "predicted probability"
    assert calibration.get_ylabel() == "share of ones"
    np.testing.assert_array_equal(calibration.get_lines()[1].get_xydata(), rows[-1]["calibration"])


def test_a_window_without_a_score_is_a_gap(rows_by_method, tmp_path):
    rows = [row | {"window_score": math.nan} for row in rows_by_method["mean"][:1]] + rows_by_method["mean"][
        1:
    ]
    figure = report.overview({"mean": rows})
    figure.savefig(tmp_path / "gap.png")
    assert np.isnan(figure.axes[0].get_lines()[0].get_ydata()[0])


def test_no_pyplot_and_nothing_loaded_by_import():
    code = (
        "import sys; from spidertensor import report; assert 'matplotlib' not in sys.modules; "
        "row = dict(metric='rmse', n_entries=1, window_score=1, score=1, skipped=0, calibration=[[0, 0]]); "
        "report.overview({'a': [row]}); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def legend(axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]
