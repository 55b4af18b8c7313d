"""`spider recommend`: rank the nodes of a mode."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spidertensor.cli import files, options, output, tables, writers
from spidertensor.cli.errors import CommandError
from spidertensor.cli.notes import PrintedNotes
from spidertensor.missing import MISSING_ID

if TYPE_CHECKING:
    from spidertensor.estimator.loading import Estimator
    from spidertensor.estimator.recommend import Recommendation

BLOCK_ROWS = 256  # rows of --given-file per write


class Best(StrEnum):
    HIGH = "high"
    LOW = "low"


class Explore(StrEnum):
    MEAN = "mean"
    UCB = "ucb"
    THOMPSON = "thompson"


def recommend(
    model: options.ModelFile,
    over: Annotated[str, typer.Option(metavar="MODE", help="The mode to rank.")],
    given: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODE=ID",
            help="The id of a mode, such as user=42. Repeat for every mode but the ranked one. Also an "
            "attribute of the situation or of a given id, such as hour=8. Somebody who is not in the model "
            "is described by attributes, and by what they had: recent(movie)=Alien, once for each, the "
            "latest last.",
        ),
    ] = None,
    given_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Rank once for each row of this file. Its columns are the other modes, and attributes.",
        ),
    ] = None,
    n: Annotated[int, typer.Option("-n", metavar="N", min=1, help="Number of nodes to show.")] = 10,
    candidates: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Rank only the ids in this file. Columns of other modes, and attributes, belong to the "
            "candidate.",
        ),
    ] = None,
    exclude: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Leave out the ids in this file: for everyone, or per user if it also has a user column.",
        ),
    ] = None,
    explore: Annotated[
        Explore,
        typer.Option(
            metavar="mean|ucb|thompson",
            help="Rank by the mean, the mean plus two std, or one draw from the posterior.",
        ),
    ] = Explore.MEAN,
    best: Annotated[Best, typer.Option(metavar="high|low", help="What is best: low for delays, prices.")] = (
        Best.HIGH
    ),
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed for Thompson sampling.")] = None,
    attributes: options.AttributeFiles = None,
    interval: options.Interval = None,
    calibration: options.CalibrationName = options.Calibration.AUTO,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Output file: csv, tsv, jsonl (optionally .gz or .zst) or parquet. With --given-file, csv "
            "to standard output by default.",
        ),
    ] = None,
    spreadsheet_safe: writers.SpreadsheetSafe = False,
    network: options.NetworkName = None,
    as_json: options.AsJson = False,
) -> None:
    """Rank the nodes of one mode, best first, with uncertainty.

    std is the uncertainty of the expected value, without the observation noise that spider predict
    includes. For binary values the first column is a probability, and std is that of its latent value f.

    \b
    spider recommend ratings.spider --given user=42 --over movie -n 5
    spider recommend ratings.spider --given user=42 --over movie --interval 0.9
    spider recommend log.spider --given user=anna --given hour=13 --over file
    spider recommend r.spider --given-file users.csv --over movie --out out.csv
    spider recommend r.spider --given user=42 --over movie --exclude seen.csv
    spider recommend r.spider --given user=4 --over movie --attributes movie=m.csv
    spider recommend r.spider --given 'recent(movie)=Alien' --over movie
    """
    from spidertensor.cli import attribute_files
    from spidertensor.faults import SpiderWarning
    from spidertensor.learner.attributes import (
        attribute_columns,
        descriptions,
        modes_with_ids,
        recent_columns,
    )

    estimator = files.load_model(model, network)
    options.check_interval(interval, calibration, model, estimator.likelihood_)
    names = [estimator.mode_names_[mode] for mode in modes_with_ids(estimator, len(estimator.mode_names_))]
    others = [name for name in attribute_columns(estimator) if name not in names]
    recent = recent_columns(estimator)
    others += recent
    fixed = options.given(given or [], [*names, *others], model, lists=recent)
    if over not in names:
        raise CommandError(f"{model} has no mode {over!r}, only: {', '.join(names)}")
    if over in fixed:
        raise CommandError(f"{over} cannot be both given and ranked")
    attribute_files.set_all(estimator, attributes)
    to_file = given_file is not None or out is not None
    if as_json and to_file:
        raise CommandError("--json is for one ranking on standard output; use --out FILE.jsonl")
    if spreadsheet_safe and not to_file:
        raise CommandError("--spreadsheet-safe is for --out and --given-file")
    out = None if out == Path("-") else out
    if out is not None:
        files.check_apart(
            {"MODEL": model, "--given-file": given_file, "--candidates": candidates, "--out": out}
        )
        files.check_apart({"--exclude": exclude, "--out": out})
        files.check_writable(out)
    notes = PrintedNotes()
    every = estimator.mode_names_
    ids: dict[str, Any] = {}
    for name, text in fixed.items():
        if name in recent:
            ids[name] = [files.parse_id(estimator, every.index(recent[name]), each) for each in text]
        elif name in others:
            ids[name] = tables.parse_attribute(estimator, name, text)
        else:
            ids[name] = files.parse_id(estimator, every.index(name), text)
    rest = [name for name in names if name != over and name not in fixed]
    how: dict[str, Any] = {"n": n, "explore": explore.value, "best": best.value, "coverage": interval}
    how["calibration"] = calibration.value
    if candidates is not None:
        how["candidates"] = tables.read_ids("--candidates", candidates, estimator, [over], rest, others)
        _check_once(how["candidates"], fixed, others, "--given")
        rest = [name for name in rest if name not in how["candidates"]]
        _note_unseen(notes, estimator, how["candidates"], "candidate")
    instead = {name: descriptions(estimator, name) for name in rest}
    if given_file is None:
        rest = [name for name in rest if fixed.keys().isdisjoint(instead[name])]
        if rest:
            raise CommandError(f"--given is missing for: {', '.join(_with(instead, rest))}")
    if exclude is not None:
        how["exclude"] = tables.read_ids(
            "--exclude", exclude, estimator, [over], [name for name in names if name in (*fixed, *rest)]
        )
    if given_file is not None:
        if not rest:
            raise CommandError("--given-file is not needed: all other modes are given")
        described = [name for name in rest if instead[name]]  # may be there, or described
        needed = [name for name in rest if name not in described]
        rows = tables.read_ids("--given-file", given_file, estimator, needed, described, attributes=others)
        known = {*rows, *fixed}
        if missing := [name for name in described if known.isdisjoint([name, *instead[name]])]:
            raise CommandError(f"{given_file}: no column {', '.join(_with(instead, missing))}")
        rows = {name: column for name, column in rows.items() if name not in fixed}
        _check_once(how.get("candidates", {}), rows, others, "--given-file")
        _note_unseen(notes, estimator, rows, "row")
        _write(notes, estimator, over, ids, rows, out, seed, how, spreadsheet_safe=spreadsheet_safe)
        return
    _note_given(notes, estimator, ids)
    if out is not None:
        import numpy as np

        one = {name: np.fromiter([raw], object, 1) for name, raw in ids.items()}
        _write(notes, estimator, over, {}, one, out, seed, how, spreadsheet_safe=spreadsheet_safe)
        return
    with notes.of_warnings():
        ranked = estimator.recommend(
            _numbered(ids, every), every.index(over), seed=seed, **_by_number(how, every)
        )
    left_out = {"candidates", "exclude"} & how.keys() or estimator.settings_.get(
        "remember_seen", False
    ) is not False
    if not ranked and not left_out:
        raise CommandError(f"{model} has no {over} left: all were forgotten")
    if not ranked:
        notes.tell(
            SpiderWarning(
                "nothing left to recommend: all candidates are excluded or already seen", kind="none left"
            )
        )
    records = [dict(zip(_columns(estimator, interval), each, strict=False)) for each in ranked]
    if as_json:
        output.print_json(
            {"model": str(model), "given": fixed, "over": over, "nodes": records, "notes": notes.records}
        )
        return
    ranked_by = _ranked_by(estimator.likelihood_.mean_name, explore, best)
    title = "; ".join([*([", ".join(given)] if given else []), f"ranked by {ranked_by}"])
    _show(title, records, over, _columns(estimator, interval))


def _write(
    notes: PrintedNotes,
    estimator: Estimator,
    over: str,
    fixed: dict[str, Any],
    rows: dict[str, Any],
    out: Path | None,
    seed: int | None,
    how: dict[str, Any],
    *,
    spreadsheet_safe: bool,
) -> None:
    """Write a line per recommendation: the given ids, its rank, its id, and the numbers."""
    import numpy as np

    names, rng = estimator.mode_names_, np.random.default_rng(seed)
    n_rows = len(next(iter(rows.values()))) if rows else 1
    columns, n_written = _columns(estimator, how["coverage"]), 0
    with (
        output.bar(f"ranking {over} for {output.counted(n_rows, 'row')}") as progress,
        writers.written(out, spreadsheet_safe=spreadsheet_safe) as write,
    ):
        for start in range(0, n_rows, BLOCK_ROWS):
            part = {name: column[start : start + BLOCK_ROWS].tolist() for name, column in rows.items()}
            size = min(BLOCK_ROWS, n_rows - start)
            part |= {name: [raw] * size for name, raw in fixed.items()}
            with notes.of_warnings():
                ranked = estimator.recommend_many(
                    _numbered(part, names), names.index(over), seed=rng, **_by_number(how, names)
                )
            records, numbers = _lines(part, over, ranked, names)
            if records:
                write(records, dict(zip(columns[1:], np.array(numbers).T, strict=False)))
            n_written += len(records)
            progress((start + size) / n_rows)
        if not n_written:
            raise CommandError("nothing to recommend: no rows, or all candidates are excluded")
    output.note(f"{output.counted(n_written, 'recommendation')} for {output.counted(n_rows, 'row')}")


def _lines(
    part: dict[str, list[Any]], over: str, ranked: list[list[Recommendation]], names: list[str]
) -> tuple[list[dict[str, Any]], list[list[float]]]:
    records, numbers = [], []
    for row, best in enumerate(ranked):
        given = {name: part[name][row] for name in (*names, *part) if name in part}
        # write a missing id as null, which fits a column of any type
        ids = {name: None if raw == MISSING_ID else raw for name, raw in given.items()}
        for rank, each in enumerate(best, 1):
            rank_column = {} if "rank" in names else {"rank": rank}
            records.append(ids | rank_column | {over: each.id})
            numbers.append([number for number in each[1:] if number is not None])
    return records, numbers


def _with(instead: dict[str, list[str]], names: list[str]) -> list[str]:
    """The names, each with the columns that may describe somebody without an id."""
    return [f"{name} (or {' or '.join(instead[name])})" if instead[name] else name for name in names]


def _columns(estimator: Estimator, interval: float | None) -> list[str]:
    likelihood = estimator.likelihood_
    return ["id", likelihood.mean_name, likelihood.std_name, *([] if interval is None else ["low", "high"])]


def _numbered(ids: dict[str, Any], names: list[str]) -> dict[str | int, Any]:
    """Ids by mode number, because models fitted without names do not know the names; attributes by name."""
    return {names.index(name) if name in names else name: each for name, each in ids.items()}


def _by_number(how: dict[str, Any], names: list[str]) -> dict[str, Any]:
    return {key: _numbered(each, names) if isinstance(each, dict) else each for key, each in how.items()}


def _check_once(candidates: dict[str, Any], given: dict[str, Any], others: list[str], option: str) -> None:
    """Raise an error if an attribute is given for everything and for each candidate."""
    if twice := [name for name in others if name in candidates and name in given]:
        raise CommandError(f"{twice[0]} is in --candidates and in {option}: leave it out of one of them")


def _note_unseen(notes: PrintedNotes, estimator: Estimator, ids: dict[str, Any], noun: str) -> None:
    from spidertensor.faults import SpiderWarning

    unseen = tables.unseen(estimator, ids)
    if unseen.any():
        known = f"{int(unseen.sum()):,} of {output.counted(len(unseen), noun)}"
        reason = f"{known} with an unseen id: predicted from the prior{_and_attributes(estimator)}"
        notes.tell(SpiderWarning(reason, kind=f"unseen {noun}s"))


def _and_attributes(estimator: Estimator) -> str:
    from spidertensor.learner.attributes import attribute_columns

    return " and its attributes" if attribute_columns(estimator) else ""


def _note_given(notes: PrintedNotes, estimator: Estimator, ids: dict[str, Any]) -> None:
    import numpy as np

    from spidertensor.faults import SpiderWarning

    modes = estimator.mode_names_
    for name, raw in ids.items():
        if name in modes and tables.unseen(estimator, {name: np.fromiter([raw], object, 1)}).any():
            shown = f"{name}={output.shown(raw)}"
            reason = f"{shown} was never seen: predicted from the prior{_and_attributes(estimator)}"
            notes.tell(SpiderWarning(reason, kind=f"unseen {name}"))


def _ranked_by(expected: str, explore: Explore, best: Best) -> str:
    two = "plus" if best == Best.HIGH else "minus"
    ranked_by = {"mean": expected, "ucb": f"the mean of f {two} two std", "thompson": "one draw of f"}
    return ranked_by[explore.value] + ("" if best == Best.HIGH else ", lowest first")


def _show(title: str, records: list[dict[str, Any]], over: str, columns: list[str]) -> None:
    rows = [[output.shown(each["id"]), *(f"{each[name]:.4g}" for name in columns[1:])] for each in records]
    output.print_table(title, [over, *(name.replace("_", " ") for name in columns[1:])], rows)
