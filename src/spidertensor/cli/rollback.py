"""`spider rollback`: restore a model from before a run of spider fit."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spidertensor.cli import files, options, output
from spidertensor.cli.errors import CommandError

if TYPE_CHECKING:
    from spidertensor.estimator.loading import Estimator

To = Annotated[
    int | None,
    typer.Option(
        "--to", metavar="N", min=1, help="The version. Defaults to the latest that differs from the model."
    ),
]
List = Annotated[bool, typer.Option("--list", help="Only list the versions.")]


def rollback(
    model: options.ModelFile, to: To = None, list_: List = False, as_json: options.AsJson = False
) -> None:
    """Restore an earlier version of a model.

    spider fit --keep 5 keeps the model as it was before each run: MODEL.kept-1, MODEL.kept-2 and
    so on; the highest number is the latest. The position is restored as well, so spider fit --resume learns
    the later rows again. The replaced model is kept, too: a second rollback undoes the first.

    \b
    spider rollback ratings.spider --list
    spider rollback ratings.spider
    spider rollback ratings.spider --to 3
    """
    from spidertensor.cli import kept
    from spidertensor.estimator import look

    if list_ and to is not None:
        raise CommandError("use only one of --to and --list")
    files.check_writable(model)
    if list_:
        _show(model, kept.versions(model), as_json=as_json)
        return
    with files.locked(model):
        files.check_no_journal(model)
        versions = kept.versions(model)
        if to is None:
            others = [n for n, each in versions.items() if not (model.is_file() and kept.same(model, each))]
            to = max(others, default=None)
        if to is None or to not in versions:
            raise CommandError(_missing(model, to, versions))
        record = _about(to, versions[to], look(versions[to]))  # fails if the file is damaged
        replaced = kept.go_back(model, versions[to])
    record |= {"model": str(model), "replaced": replaced}
    if as_json:
        output.print_json(record)
        return
    there = "" if replaced is None else f"; the replaced model is version {replaced}"
    output.say(f"{model}: restored version {to} of {record['saved']}, {_learned(record)}{there}")


def _missing(model: Path, to: int | None, versions: dict[int, Path]) -> str:
    if not versions:
        return f"{model}: no earlier versions; spider fit --keep N keeps them"
    if to is None:
        return f"{model}: no other version is kept"
    return f"{model}: no version {to}, only: {', '.join(map(str, versions))}"


def _about(number: int, path: Path, estimator: Estimator) -> dict[str, Any]:
    saved = datetime.fromtimestamp(path.stat().st_mtime).isoformat(" ", "seconds")
    position = estimator.position_ if isinstance(estimator.position_, dict) else {}
    facts = {name: position.get(name) for name in ("source", "row")}
    return {"version": number, "file": str(path), "saved": saved, "entries": estimator.n_entries_, **facts}


def _learned(record: dict[str, Any]) -> str:
    entries = output.counted(record["entries"], "entry", "entries")
    return entries if record["row"] is None else f"{entries}, row {record['row']} of {record['source']}"


def _show(model: Path, versions: dict[int, Path], *, as_json: bool) -> None:
    from spidertensor.estimator import look

    records = [_about(number, path, look(path)) for number, path in versions.items()]
    if as_json:
        output.print_json({"model": str(model), "versions": records})
    elif not records:
        output.say(_missing(model, None, versions))
    else:
        rows = [[str(each["version"]), each["saved"], _learned(each)] for each in records]
        output.print_table(f"{model}: earlier versions", ["version", "saved", "learned"], rows)
