"""A fitted estimator as a notebook shows it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from spidertensor.estimator.tally import LearningCurve

WIDTH, HEIGHT = 320, 90  # of the picture, in pixels


def html(estimator: Any) -> str:
    """What the model knows: entries, nodes by mode, errors over time and at rest, members by weight."""
    fitted = estimator._fitted()
    likelihood, history = estimator.likelihood_, estimator.history_
    about = [("entries", f"{estimator.n_entries_:,}")]
    noise = getattr(estimator, "noise_", None)
    if noise is not None:
        about.append(likelihood.noise_in_words(noise))
    entries = max(estimator.n_entries_, 1)
    about.append(("log density per entry", f"{estimator.log_evidence_ / entries:.4f}"))
    curve = estimator.learning_curve_
    about += _latest(curve)
    if history is not None:
        best = history["errors"][history["chosen"] - 1]
        judged = (
            f"{likelihood.metric} {best:.4f} on {history['judged']:,} {history['judge']} entries held back"
        )
        about.append((f"{len(history['errors'])} passes", judged))
    schema = None if fitted.columns is None else fitted.columns.schema
    modes = [
        (name, f"{nodes:,}")
        for number, (name, nodes) in enumerate(zip(estimator.mode_names_, estimator.n_nodes_, strict=True))
        if schema is None or schema.modes[number].has_id
    ]
    if fitted.columns is not None:
        modes += [
            (
                f"{fitted.columns.schema.names[each.mode]}: {each.spec.name} ({each.spec.kind})",
                f"{each.n_rows:,}",
            )
            for each in fitted.columns.columns
        ]
    members = [
        (", ".join(f"{name}={value}" for name, value in each.own.items()) or "as set", f"{each.weight:.3f}")
        for each in estimator.members_
    ]
    return (
        f"<div><p><code>{escape(repr(estimator))}</code></p>"
        + _table(("learned", ""), about)
        + (_picture(curve) if len(curve.entries) > 1 else "")
        + _table(("mode or attribute", "nodes"), modes)
        + (_table(("member", "weight"), members) if len(members) > 1 else "")
        + "</div>"
    )


def _latest(curve: LearningCurve) -> list[tuple[str, str]]:
    """Error and coverage of the last blocks of the learning curve, about a tenth of it."""
    last = slice(-max(1, len(curve.entries) // 10), None)
    if not len(curve.entries):
        return []
    square, share = curve.metric == "rmse", np.diff(curve.entries, prepend=0)[last]
    error, floor = (
        np.average(each[last] ** 2, weights=share) ** 0.5 if square else np.average(each[last], weights=share)
        for each in (curve.error, curve.floor)
    )
    name = "RMSE" if square else "log loss"
    beside = "" if np.isnan(floor) else f"; {floor:.4g} by the mean so far"
    found = [(f"{name} just before learning, latest entries", f"{error:.4g}{beside}")]
    if not np.isnan(curve.coverage[last]).any():
        found.append(("in their 90 % intervals", f"{np.average(curve.coverage[last], weights=share):.1%}"))
    return found


def _picture(curve: LearningCurve) -> str:
    """The learning curve as a picture: the error, and the floor in grey."""
    top = float(np.nanmax([curve.error, curve.floor]))
    x = WIDTH * curve.entries / curve.entries[-1]
    lines = [
        f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="'
        + " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, HEIGHT * (1 - 0.8 * each / top), strict=True))
        + '"/>'
        for each, colour in ((curve.floor, "#999"), (curve.error, "#1f77b4"))
        if not np.isnan(each).any()
    ]
    words = "error" if np.isnan(curve.floor).all() else "error, and in grey that of the mean so far"
    return (
        f'<svg role="img" aria-label="error over the entries learned" viewBox="0 0 {WIDTH} {HEIGHT + 16}" '
        f'style="width:{WIDTH}px;max-width:100%;display:block" font-size="10">{"".join(lines)}'
        f'<line x1="0" x2="{WIDTH}" y1="{HEIGHT}" y2="{HEIGHT}" stroke="#999"/>'
        f'<text y="{HEIGHT + 12}" fill="#777">0</text>'
        f'<text x="{WIDTH}" y="{HEIGHT + 12}" text-anchor="end" fill="#777">'
        f"{curve.entries[-1]:,} entries</text>"
        f'<text x="4" y="10" fill="#777">{words}</text></svg>'
    )


def _table(header: tuple[str, str], rows: Sequence[tuple[str, str]]) -> str:
    head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in header)
    body = "".join(
        f'<tr><td style="text-align:left">{escape(name)}</td>'
        f'<td style="text-align:right">{escape(text)}</td></tr>'
        for name, text in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
