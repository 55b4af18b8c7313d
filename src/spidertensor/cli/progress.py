"""Progress of `spider fit` (a bar on a terminal, else periodic lines) and its final summary."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Any

from spidertensor.cli import output
from spidertensor.cli.run import Run
from spidertensor.estimator.history import Pass
from spidertensor.estimator.times import NEXT_ENTRY
from spidertensor.learner.floors import FLOORS
from spidertensor.learner.learner import Learner

LINE_EVERY_S = 10.0


class Progress:
    def __init__(self, run: Run, *, shown: bool) -> None:
        self.run = run
        self.began = self.printed = perf_counter()
        self.plain = shown and not sys.stderr.isatty()
        self.bar: Any = None
        self.judged = ""  # what the last pass came to
        self.steps, self.steps_of_a_pass = 0, 1
        if shown and not self.plain:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            columns = (
                BarColumn(20),
                TextColumn("{task.percentage:>3.0f}%"),
                TextColumn("{task.description}"),
            )
            self.bar = Bar(*columns, console=Console(stderr=True), transient=True, refresh_per_second=5)
            self.task = self.bar.add_task("starting", total=None)

    def __enter__(self) -> Progress:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.bar:
            self.bar.stop()

    def show(self, share: float | None) -> None:
        # rows that are learned in several passes are only read here
        text = f"reading {self.run.source.name}" if self.run.collects else self._text()
        if self.bar:
            done = {} if share is None else {"total": 1.0, "completed": share}
            self.bar.update(self.task, description=text, **done)
        elif self.plain and perf_counter() - self.printed > LINE_EVERY_S:
            self.printed = perf_counter()
            output.note(text)

    def show_pass(self, number: int, over: Pass | None) -> None:
        """Show the work of a pass over the rows that were read, or its end."""
        run, self.steps = self.run, self.steps + 1
        share = run.entries / max(run.row, 1) if number == 1 else self.steps / self.steps_of_a_pass
        text = f"pass {number}: {self._text()}" if number == 1 else f"pass {number}, after {self.judged}"
        if over is not None:
            metric = output.METRICS[run.learner.scores.metric]
            self.judged = text = f"pass {number}: {metric} {over.error:.4f} on rows held back"
            text += f" (sites of {over.sites})" if number == 1 else ""
            self.steps, self.steps_of_a_pass = 0, self.steps
        if self.bar:
            self.bar.update(self.task, description=text, total=1.0, completed=min(share, 1.0))
            if over is not None:
                self.bar.console.print(text)
        # the ends of passes are shown however soon they follow, once it takes that long
        elif self.plain and perf_counter() - (self.printed if over is None else self.began) > LINE_EVERY_S:
            self.printed = perf_counter()
            output.note(text)

    def _text(self) -> str:
        run, scores, times = self.run, self.run.learner.scores, self.run.times
        speed = times.timed / times.learning if times.timed else run.entries / (perf_counter() - self.began)
        floors = ", ".join(f"{name} {floor or 0.0:.4f}" for name, floor in scores.floors.items())
        score = f"{output.METRICS[scores.metric]} {scores.score or 0.0:.4f} ({floors})"
        n_bad = run.learner.position["bad"]
        bad = f"  {output.counted(n_bad, 'bad row')}" if n_bad else ""
        evidence = f"evidence {scores.log_evidence / max(run.entries, 1):.4f}"
        return f"{run.entries:,} entries  {speed:,.0f}/s  {score}  {evidence}{bad}{self._stream()}"

    def _stream(self) -> str:
        """Arrival rate and lag of a stream."""
        opened = self.run.opened
        if opened is None:
            return ""
        rate = f"  arriving {self.run.entries / (perf_counter() - self.began):,.0f}/s"
        lag = "" if opened.lag is None else f"  lag {opened.lag:,}"
        again = f"  {output.counted(opened.reconnects, 'reconnect')}" if opened.reconnects else ""
        return f"{rate}{lag if opened.connected else '  not connected'}{again}"


def summary(run: Run, seconds: float, *, as_json: bool) -> None:
    learner, times = run.learner, run.times
    model, scores = learner.estimator, learner.scores
    record: dict[str, Any] = {
        "model": str(learner.path),
        "source": run.source.name,
        "entries": model.n_entries_,
        "entries_now": run.entries,
        "bad_rows": learner.position["bad"],
        "skipped_rows": run.skipped,
        "row": run.row,
        "nodes": {learner.modes[mode]: model.n_nodes_[mode] for mode in learner.with_ids},
        "noise": getattr(model, "noise_", None),
        "log_evidence": model.log_evidence_ / model.n_entries_,
        "members": output.members_of(model),
        **output.counts_of(model),
        "metric": scores.metric,
        "score": scores.score,
        "case": _case(learner),
        "floors": scores.floors,
        "last_part": run.last_part.record(),
        "coverage_90": scores.coverage,
        "history": model.history_,
        "once": run.once,
        "seconds": seconds,
        "seconds_reading": times.reading,
        "seconds_starting": times.starting,
        "seconds_learning": times.learning,
        "entries_per_second": times.timed / times.learning if times.timed else None,
        "notes": run.notes.records,
    }
    if run.opened is not None:
        record |= {"lag": run.opened.lag, "reconnects": run.opened.reconnects}
    if as_json:
        output.print_json(record)
    else:
        output.print_pairs(f"{record['model']}: learned from {record['source']}", _pairs(record, model))


def _pairs(record: dict[str, Any], model: Any) -> list[tuple[str, str]]:
    now, total = record["entries_now"], record["entries"]
    score = "nothing new to learn"
    if now:
        metric = output.METRICS[record["metric"]]
        score = f"{metric} {record['score']:.4f} ({record['case']})"
    noise = record["noise"]
    parts = {name: f"{record[f'seconds_{name}']:.1f} s" for name in ("reading", "starting", "learning")}
    spent = f"reading {parts['reading']}, first rows and compiling {parts['starting']}"
    if not record["seconds_starting"]:  # all rows were read first
        spent = f"reading {parts['reading']}, compiling and learning {parts['learning']}"
    elif record["entries_per_second"]:
        spent += f", other rows {parts['learning']}: {record['entries_per_second']:,.0f} entries/s"
    return [
        ("entries", f"{now:,}" if now == total else f"{now:,} now, {total:,} in all"),
        ("bad rows", f"{record['bad_rows']:,}"),
        *([("skipped", f"{record['skipped_rows']:,} without an id")] if record["skipped_rows"] else []),
        *((f"nodes of {mode}", f"{n:,}") for mode, n in record["nodes"].items()),
        *([] if noise is None else [model.likelihood_.noise_in_words(noise)]),
        ("evidence", output.evidence(record["log_evidence"], model)),
        ("score", score),
        *([("floors", f"simple guesses to beat: {_floors(record['floors'])}")] if now else []),
        *([] if record["history"] else _last_part(record)),
        *_coverage(record["coverage_90"]),
        *output.pairs_of_history(record["history"], record["metric"]),
        *([] if record["once"] is None or not now else [("passes", f"1: {record['once']}")]),
        *_leading(record["members"]),
        *output.pairs_of_counts(record),
        ("time", f"{record['seconds']:.1f} s: {spent}"),
    ]


def _case(learner: Learner) -> str:
    """Which error the score is."""
    if learner.case != NEXT_ENTRY:
        return f"{learner.case}; floors know them at once"
    each = "each event or draw" if learner.estimator.learns_events else "each entry"
    passes = "" if learner.estimator.history_ is None else ", in the first pass"
    return f"{NEXT_ENTRY}: {each} predicted just before it was learned{passes}"


def _floors(floors: dict[str, float]) -> str:
    return ", ".join(f"{FLOORS[name]} {floor:.4f}" for name, floor in floors.items())


def _last_part(record: dict[str, Any]) -> list[tuple[str, str]]:
    last = record["last_part"]
    if last is None:
        return []
    metric = output.METRICS[record["metric"]]
    score = f"{metric} {last['score']:.4f} in the last {output.counted(last['entries'], 'entry', 'entries')}"
    return [("last part", f"{score}; {_floors(last['floors'])}")]


def _coverage(share: float | None) -> list[tuple[str, str]]:
    return [] if share is None else [("intervals", f"90% intervals contained {share:.1%} of the values")]


def _leading(members: list[dict[str, Any]]) -> list[tuple[str, str]]:
    if len(members) == 1:
        return []
    number, member = next((n, each) for n, each in enumerate(members, 1) if each["leading"])
    own = f" ({output.settings_text(member['own'])})" if member["own"] else ""
    text = f"member {number} of {len(members)}{own} leads with weight {member['weight']:.3f}"
    return [("committee", text)]
