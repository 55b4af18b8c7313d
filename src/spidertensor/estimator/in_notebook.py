"""A fitted estimator as a notebook shows it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any


def html(estimator: Any) -> str:
    """What the model knows: entries, nodes by mode, error at rest, members by weight."""
    fitted = estimator._fitted()
    likelihood, history = estimator.likelihood_, estimator.history_
    about = [("entries", f"{estimator.n_entries_:,}")]
    noise = getattr(estimator, "noise_", None)
    if noise is not None:
        about.append(likelihood.noise_in_words(noise))
    entries = max(estimator.n_entries_, 1)
    about.append(("log density per entry", f"{estimator.log_evidence_ / entries:.4f}"))
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
        + _table(("mode or attribute", "nodes"), modes)
        + (_table(("member", "weight"), members) if len(members) > 1 else "")
        + "</div>"
    )


def _table(header: tuple[str, str], rows: Sequence[tuple[str, str]]) -> str:
    head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in header)
    body = "".join(
        f'<tr><td style="text-align:left">{escape(name)}</td>'
        f'<td style="text-align:right">{escape(text)}</td></tr>'
        for name, text in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
