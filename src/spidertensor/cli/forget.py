"""`spider forget`: remove nodes from a model, for example after a deletion request."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spidertensor.cli import files, kept, options, output
from spidertensor.cli.errors import CommandError
from spidertensor.writing import naming

MAX_SHOWN = 5  # unknown ids listed in a note


def forget(
    model: options.ModelFile,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids to forget.")] = None,
    mode: Annotated[str, typer.Option(metavar="NAME", help="The mode of the ids.")] = "",
    ids_file: Annotated[
        Path | None, typer.Option("--ids", metavar="FILE", help="A text file of ids, one per line.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Remove nodes (their ids, factors and attributes) from a model.

    What the network and other nodes learned from their rows stays. The rows themselves may still be in the
    source, in files of rejects and predictions, and in copies of the model such as those of fit --keep. If a
    server was killed, start and stop it first: its journal still holds rows.

    Unknown ids only print a note. Put -- before ids that begin with a dash.

    \b
    spider forget ratings.spider --mode user 17 42
    spider forget ratings.spider --mode user --ids deletions.txt
    """
    texts = [*(ids or []), *([] if ids_file is None else _lines(ids_file))]
    if not texts:
        raise CommandError("no ids to forget: list them, or use --ids FILE")
    from spidertensor.estimator import look
    from spidertensor.learner.attributes import modes_with_ids

    with files.locked(model):
        files.check_no_journal(model)
        estimator = look(model)  # needs neither JAX nor a custom network
        names = estimator.mode_names_
        with_ids = [names[each] for each in modes_with_ids(estimator, len(names))]
        if mode not in with_ids:
            raise CommandError(
                f"--mode must be one of: {', '.join(with_ids)}" + (f", not {mode!r}" if mode else "")
            )
        number = names.index(mode)
        parsed = estimator._parse_ids(number, texts)
        entry = [[raw if each == mode else 0 for each in with_ids] for raw in parsed]
        seen = estimator.seen(entry)[:, number].tolist()
        forgotten = estimator.forget(number, parsed)
        if forgotten:
            estimator.save(model, estimator.position_)
        for version in kept.versions(model).values():
            output.note(f"note: {version} is an earlier version and was not changed")
    unknown = [text for text, known in zip(texts, seen, strict=True) if not known]
    record = {"model": str(model), "mode": mode, "forgotten": forgotten, "unknown": unknown}
    if as_json:
        output.print_json(record | {"nodes": estimator.n_nodes_[number]})
        return
    if unknown:
        more = f" and {len(unknown) - MAX_SHOWN:,} more" if len(unknown) > MAX_SHOWN else ""
        output.note(f"note: {model} has no {mode} {', '.join(unknown[:MAX_SHOWN])}{more}")
    output.say(f"{model}: forgot {output.counted(forgotten, 'node')} of {mode}")


def _lines(path: Path) -> list[str]:
    with naming(path):
        try:
            text = path.read_text("utf-8-sig")
        except UnicodeDecodeError:
            raise CommandError(f"{path}: not UTF-8 text") from None
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    return [line for line in lines if line]
