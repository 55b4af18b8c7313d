"""`spider tune`: try settings on a file and print the command with those that help."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spidertensor.cli import bad_rows, evaluated_file, files, model_options, options, output, program
from spidertensor.cli.bad_rows import BadRows, OnBad
from spidertensor.cli.errors import CommandError
from spidertensor.cli.evaluate_run import Timing

if TYPE_CHECKING:
    from spidertensor.evaluation.tuning import Trial


def tune(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="FILE", help="A file, as for spider fit.")],
    modes: options.Modes = None,
    value: model_options.Value = None,
    kind: options.Kinds = None,
    attributes: options.AttributeFiles = None,
    binary: model_options.Binary = False,
    counts: model_options.Counts = False,
    labels: model_options.Labels = None,
    levels: model_options.Levels = None,
    time: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column with the time of a row: the latest tenth is held back."),
    ] = None,
    passes: model_options.Passes = None,
    seed: options.Seed = None,
    on_bad: bad_rows.OnBadOption = OnBad.RAISE,
    rejects: bad_rows.Rejects = None,
    format: options.Format = None,  # noqa: A002
    columns: options.Columns = None,
    delimiter: options.Delimiter = None,
    encoding: options.Encoding = None,
    decimal: options.Decimal = None,
    bin: options.BinRules = None,  # noqa: A002
    as_json: options.AsJson = False,
) -> None:
    """Find settings of spider fit for a file.

    \b
    spider tune ratings.csv --modes user,movie --value rating
    spider tune ratings.csv --modes user,movie --value rating --time time

    Fits nine tenths of the rows with one setting after the other, and keeps a change if the others are
    predicted better by more than chance. Prints the command with what was kept. Takes about ten times as
    long as spider fit.
    """
    model_options.check_kinds(binary=binary, counts=counts, levels=levels is not None)
    if labels is not None and not binary:
        raise CommandError("--labels is for --binary")
    if seed is not None and seed < 0:
        raise CommandError(f"--seed takes a whole number from 0 on, not {seed}")
    # slow imports, after the quick checks above
    from spidertensor.cli import attribute_files, text_labels
    from spidertensor.estimator.labels import are_zero_one
    from spidertensor.evaluation import at_rest
    from spidertensor.evaluation.tuning import MOST_TRIALS, trials

    names, schema = options.modes_and_schema(modes, kind)
    if time is not None and time in (*(names or ()), value):
        raise CommandError(f"--time {time}: name a column that is neither a mode nor the value")
    classes = text_labels.parsed(labels)
    rejects = rejects or Path(f"{Path(source).name.split('.')[0]}.rejects.jsonl")
    if on_bad == OnBad.FILE:
        files.check_apart({"FILE": Path(source), "--rejects": rejects})
        files.check_writable(rejects)
    opened = options.source(source, format, columns, delimiter, encoding, decimal)
    data, _ = evaluated_file.load(
        opened, BadRows(opened, on_bad, rejects), names, value, Timing(time, None, None, None), None,
        schema=schema, attributes=attributes, binary=binary, counts=counts,
        levels=model_options.levels(levels),
        classes=None if classes is None or are_zero_one(classes) else classes, rules=bin,
    )  # fmt: skip
    own = {} if passes is None else {"passes": options.passes(passes)}
    in_time = time is not None
    train, test = data.split_in_time() if in_time else data.split(seed or 0)

    def describe(estimator: Any) -> None:
        attribute_files.set_all(estimator, attributes)

    def method_of(settings: Any) -> Any:
        return at_rest.fitted(data, describe, own | settings, in_time=in_time)

    found: list[Trial] = []
    with output.bar(f"trying settings on {source}") as progress:
        for trial in trials(method_of, train, test, data.likelihood, seed or 0):
            found.append(trial)
            progress(len(found) / MOST_TRIALS)
    kept = {name: value for trial in found if trial.kept for name, value in trial.change.items()}
    call: program.Call = context.obj
    asked = [word for word in call.arguments[1:] if word != "--json"]
    command = shlex.join(["spider", "fit", *asked, *_as_options(kept)])
    record = {
        "source": source,
        "metric": data.likelihood.metric,
        "held_back": len(test.value),
        "settings": kept,
        "trials": [trial._asdict() for trial in found],
        "command": command,
    }
    if as_json:
        output.print_json(record)
        return
    _show(record, found, in_time=in_time, is_ordinal=data.likelihood.ordinal)


def _show(record: dict[str, Any], found: list[Trial], *, in_time: bool, is_ordinal: bool) -> None:
    which = "latest" if in_time else "random"
    title = f"{record['source']}: {record['held_back']:,} {which} entries held back"
    density = "log score" if is_ordinal else "log density"
    header = ["settings", output.METRICS[record["metric"]], density, "gain", "", "seconds"]
    rows = [
        [
            _named(trial),
            f"{trial.score:.4f}",
            f"{trial.log_density:.4f}",
            "" if trial.gain is None else f"{trial.gain:+.4f} ± {trial.error:.4f}",
            "kept" if trial.kept and trial.change else "",
            f"{trial.seconds:.1f}",
        ]
        for trial in found
    ]
    output.print_table(title, header, rows)
    words = "nothing is better than the defaults by more than chance" if not record["settings"] else ""
    output.say("", *([words] if words else []), record["command"])


def _named(trial: Trial) -> str:
    return " ".join(_as_options(trial.change)) or "defaults"


def _as_options(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", _as_text(value))]


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "none" if value is None else f"{value:g}"
