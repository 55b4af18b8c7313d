"""Claims, tables and figures as HTML. All text from rows is escaped."""

from __future__ import annotations

import base64
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from spidertensor_study.report.runs import cut_short
from spidertensor_study.report.tables import NOT_RUN, Entry, Table
from spidertensor_study.report.verdicts import Check, Claim

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 64rem; margin: 0 auto;
  padding: 1rem; }
h1 { line-height: 1.2; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
img { max-width: 100%; height: auto; }
figure { margin: 1rem 0; }
figcaption, .small { font-size: .9rem; color: #444; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .85rem; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .25rem .5rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
.note { font-weight: 400; }
.numbers td { white-space: nowrap; }
.numbers small { display: block; font-weight: 400; color: #555; }
nav ul { columns: 2; padding-left: 1.2rem; }
.numbers tr > th:first-child { white-space: nowrap; position: sticky; left: 0; background: #fff; }
.best { font-weight: 700; background: #e8f1f8; }
.empty { color: #777; }
.banner { border: 2px solid #d55e00; padding: .5rem 1rem; font-weight: 600; }
.claims { table-layout: fixed; width: 100%; }
.claims td { overflow-wrap: anywhere; }
.claims .small { font-size: .8rem; }
.claims th:first-child { width: 35%; }
.claims ul { padding-left: 1.2rem; margin: .3rem 0; }
.verdict { font-weight: 700; }
.holds { border-left: .4rem solid #00588a; }
.part { border-left: .4rem dashed #e69f00; }
.fails { border-left: .4rem double #d55e00; }
.none { border-left: .4rem solid #ccc; }
summary { cursor: pointer; }
@media (max-width: 40rem) {
  h1 { font-size: 1.5rem; }
  nav ul { columns: 1; }
  figure { overflow-x: auto; }
  figure img { max-width: none; width: 44rem; }  /* text of a figure stays readable, and one scrolls */
  .claims, .claims tbody, .claims tr, .claims td { display: block; }
  .claims tr:first-child { display: none; }
}
"""
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
TITLE = "Streaming deep tensor factorization: the paper's experiments, run again"
CLASSES = {
    "holds": "holds", "holds where judged": "part", "holds in part": "part", "undecided": "part",
    "does not hold": "fails", "not judged": "none", "not run": "none",
}  # fmt: skip
OUTCOMES = {
    "loss": "where it does not hold", "undecided": "where it is undecided",
    "not judged": "what was not judged", "win": "where it holds",
}  # fmt: skip


def page(parts: Iterable[str]) -> str:
    return PAGE.format(title=TITLE, style=STYLE, body="\n".join(parts))


def section(anchor: str, title: str, text: str, parts: Sequence[str]) -> str:
    return "\n".join([f'<h2 id="{anchor}">{escape(title)}</h2>', f"<p>{escape(text)}</p>", *parts])


def not_run(titles: Sequence[str]) -> str:
    return f'<p class="empty">Not run: {escape("; ".join(titles))}.</p>' if titles else ""


def contents(sections: Iterable[tuple[str, str]]) -> str:
    """Links to sections, each an anchor and a title."""
    items = "".join(f'<li><a href="#{anchor}">{escape(title)}</a></li>' for anchor, title in sections)
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>'


def header(rows: Sequence[Mapping[str, Any]]) -> str:
    failed = [row for row in rows if row["error"]]
    facts = {
        "rows": f"{len(rows):,}, of these {len(failed):,} failed",
        "experiments": _listed(row["experiment"] for row in rows),
        "versions": _listed(row.get("version") for row in rows),
        "commits": _listed(row.get("commit") for row in rows),
        "machines": _listed(row.get("machine") for row in rows),
        "finished": f"{min(_finished(rows), default='?')} to {max(_finished(rows), default='?')}",
    }
    pairs = "".join(f"<tr><th>{key}</th><td>{escape(value)}</td></tr>" for key, value in facts.items())
    parts = [f"<h1>{TITLE}</h1>", _banner(cut_short(rows)), f'<div class="wide"><table>{pairs}</table></div>']
    if failed:
        lines = [f"{row['experiment']}: {_settings_text(row['settings'])}: {row['error']}" for row in failed]
        items = "".join(f"<li>{escape(each)}</li>" for each in lines)
        parts.append(f"<details open><summary>{len(failed):,} failed</summary><ul>{items}</ul></details>")
    return "\n".join(parts)


def _banner(lines: Iterable[str]) -> str:
    text = "<br>".join(map(escape, lines))
    return f'<p class="banner">{text}</p>' if text else ""


def _listed(values: Iterable[Any]) -> str:
    """The distinct values, separated by semicolons because they may contain commas."""
    return "; ".join(sorted({str(value) for value in values if value is not None})) or "unknown"


def _finished(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return [str(row["finished"]) for row in rows if row.get("finished")]


def _settings_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items() if value is not None)


def claims(
    anchor: str, title: str, text: str, rule: str, found: Iterable[Claim], anchors: Container[str]
) -> str:
    """The section of claims. text: above them; rule: how they are judged; anchors: sections on the page"""
    rows = "\n".join(
        f"<tr><td>{escape(claim.text)}{_see(claim.section) if claim.section in anchors else ''}</td>"
        f'<td class="{CLASSES[claim.status]}">'
        f'<span class="verdict">{escape(claim.status.capitalize())}.</span> '
        f"{escape(claim.sentence)}{_evidence(claim)}</td></tr>"
        for claim in found
    )
    return (
        f'<h2 id="{anchor}">{escape(title)}</h2>\n<p>{escape(text)}</p>\n'
        f"<details><summary>how the claims are judged</summary><p>{escape(rule)}</p></details>\n"
        '<div class="wide"><table class="claims"><tr><th>claim of the paper</th><th>what we found</th></tr>\n'
        f"{rows}</table></div>"
    )


def _see(anchor: str) -> str:
    return f' (<a href="#{anchor}">see</a>)'


def _evidence(claim: Claim) -> str:
    """The cost; in a fold, how it was judged and every number, failures first."""
    cost = f"<div>Cost: {escape(claim.costs)}.</div>" if claim.costs else ""
    if not claim.checks:
        return f'<div class="small">{cost}</div>' if cost else ""
    notes = [f"Judged by {claim.judged}.", *claim.notes]
    parts = [f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>"]
    for outcome, summary in OUTCOMES.items():
        items = [f"<li>{_check(check)}</li>" for check in claim.checks if check.outcome == outcome]
        if items:
            head = f"<summary>{summary} ({len(items)})</summary>"
            parts.append(f"<details>{head}<ul>{''.join(items)}</ul></details>")
    return f'<div class="small">{cost}<details><summary>numbers</summary>{"".join(parts)}</details></div>'


def _check(check: Check) -> str:
    return f"{escape(check.where)}: {escape(check.numbers)}"


def table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    body = "\n".join(
        f"<tr><th>{escape(name)}</th>{''.join(map(_entry, entries))}</tr>" for name, entries in table.rows
    )
    note = f'<div class="note">{escape(table.note)}</div>' if table.note else ""
    caption = f"<caption>{escape(table.caption)}{note}</caption>"
    return f'<div class="wide"><table class="numbers">{caption}<tr><th></th>{head}</tr>\n{body}</table></div>'


def _entry(entry: Entry) -> str:
    kind = "best" if entry.best else "empty" if entry.text == NOT_RUN else ""
    number, *rest = re.split(r" (?=[±(])", entry.text, maxsplit=1)
    text = escape(number) + "".join(f" <small>{escape(each)}</small>" for each in rest)
    return f"<td{f' class={kind!r}' if kind else ''}>{text}</td>"


def figure(shows: str, caption: str, png: bytes) -> str:
    """A figure. shows: alternative text"""
    source = base64.b64encode(png).decode("ascii")
    image = f'<img alt="{escape(shows)}" src="data:image/png;base64,{source}">'
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"
