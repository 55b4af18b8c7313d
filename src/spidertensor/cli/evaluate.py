"""`spider evaluate`: score a method on your file or on a data set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spidertensor.cli import (
    bad_rows,
    evaluated,
    evaluated_file,
    files,
    model_options,
    options,
    output,
    program,
    ranked_events,
)
from spidertensor.cli.bad_rows import BadRows, OnBad
from spidertensor.cli.errors import CommandError
from spidertensor.cli.evaluate_run import Protocol, Timing, plan_of, rows_of

if TYPE_CHECKING:
    from spidertensor.estimator.columns import Schema
    from spidertensor.evaluation.dataset import Dataset
    from spidertensor.evaluation.methods import Entry

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A csv, tsv, jsonl (optionally .gz, .zst or .zip) or parquet file; - for standard input; or a "
        "demo stream: flights or synthetic.",
    ),
]
RANK = 8  # of all methods by default


def evaluate(
    context: typer.Context,
    data: Data,
    modes: options.Modes = None,
    value: Annotated[str | None, typer.Option(metavar="NAME", help="The value column.")] = None,
    kind: options.Kinds = None,
    attributes: options.AttributeFiles = None,
    binary: Annotated[bool, typer.Option("--binary", help="Values are 0 or 1; score probabilities.")] = False,
    counts: Annotated[
        bool, typer.Option("--counts", help="Values are counts (0, 1, ...); score rates.")
    ] = False,
    labels: model_options.Labels = None,
    levels: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...", help="Values are ordered levels, such as 1,2,3,4,5; score their probabilities."
        ),
    ] = None,
    events: Annotated[
        bool, typer.Option("--events", help="Rows are events without a value; rank what comes next.")
    ] = False,
    over: Annotated[
        str | None, typer.Option(metavar="MODE", help="With --events: the mode to rank, such as song.")
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Sort rows by this column (numbers or ISO timestamps). By default, keep the file order.",
        ),
    ] = None,
    known_at: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --time: the column that says when a value is known. Each row is predicted at its time "
            "with what was known then.",
        ),
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option(
            metavar="N|TIME",
            help="Values are known so much later: 3h, or 1000 entries.",
        ),
    ] = None,
    rest: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Score a model that rests: fit, then predict this share without learning; three times, "
            "further along the stream each time.",
        ),
    ] = None,
    protocol: Annotated[
        Protocol | None,
        typer.Option(
            metavar="prequential|held-out|clock|rest|last-out",
            help="Predict each entry before learning it (default for files); learn, then test (default for "
            "data sets); learn values when they are known (--known-at, --delay); --rest; or, for events, "
            "hold out and rank each user's last one.",
        ),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE|NAME",
            help="For held-out: the share of entries to test (default 0.1), drawn at random, or with --time "
            "the last ones; or the name of a published test.",
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(metavar="NAME", help="One of `spider-study methods`.", hidden=True)
    ] = "spider",
    rank: model_options.Rank = None,
    hidden: model_options.Hidden = None,
    activation: model_options.Activation = None,
    committee: options.Committee = None,
    memory: options.Memory = None,
    clip: model_options.Clip = None,
    batch_size: Annotated[int, typer.Option(metavar="N", min=1, help="Entries per batch.")] = 256,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Seed for the split, the order and the initial weights.")
    ] = 0,
    passes: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="For held-out, rest and last-out: how often to learn the entries. [default: 1 for held-out, "
            "else auto, as spider fit does]",
        ),
    ] = None,
    engine: Annotated[
        options.Engine,
        typer.Option(
            metavar="sequential|vectorized",
            help="For spider methods: compiled, entry by entry; or JAX, batch by batch.",
        ),
    ] = options.Engine.SEQUENTIAL,
    on_bad: bad_rows.OnBadOption = OnBad.RAISE,
    rejects: bad_rows.Rejects = None,
    format: options.Format = None,  # noqa: A002
    columns: options.Columns = None,
    delimiter: options.Delimiter = None,
    encoding: options.Encoding = None,
    decimal: options.Decimal = None,
    missing_id: Annotated[
        options.MissingId,
        typer.Option(
            metavar="error|skip|own",
            help="On a missing id: treat the row as bad; skip it; or treat all missing ids of a mode as one "
            "node.",
        ),
    ] = options.MissingId.ERROR,
    bin: options.BinRules = None,  # noqa: A002
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Plot the error over time and the coverage of intervals to a png, svg or pdf.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Score the model on a file and compare it with baselines.

    \b
    spider evaluate ratings.csv --modes user,movie --value rating
    spider evaluate ratings.csv --modes user,movie --value rating --time time
    spider evaluate t.csv --modes driver,road --value min --time go --known-at end
    spider evaluate r.csv --modes user,movie --value rating --time when --rest 0.1
    spider evaluate c.parquet --modes user,page --value click --binary --test 0.2
    spider evaluate flights --protocol prequential --plot flights.png
    spider evaluate plays.csv --modes user,song --events --over song --time when
    spider evaluate r.csv --modes user+age,movie+genres --value rating

    Writes only the files of --plot and --rejects. The whole file is held in memory. The first tenth of a
    stream is learned but not scored. Baselines learn from ids alone.
    """

    from spidertensor.cli import text_labels  # slow imports
    from spidertensor.estimator.columns import FittedColumns
    from spidertensor.estimator.labels import are_zero_one
    from spidertensor.evaluation.methods import CONTINUOUS

    call: program.Call = context.obj
    catalogue = call.catalogue()
    methods = catalogue.methods
    own = data not in catalogue.infos and bool(
        modes or value or data == "-" or set("./\\") & set(data) or Path(data).is_file()
    )
    if call.forward and not (own or data in catalogue.infos):
        known = ", ".join(catalogue.infos)
        call.forward(call.arguments, f"{data!r} is neither a file nor one of the data sets {known}")
    if call.forward and method not in methods:
        call.forward(call.arguments, f"{method!r} is not one of the methods {', '.join(methods)}")
    if method not in methods:
        raise CommandError(f"unknown method {method!r}; choose one of {', '.join(methods)}")
    if counts and not methods[method].counts:
        able = [name for name, entry in methods.items() if entry.counts]
        raise CommandError(f"{method} cannot learn counts; choose one of {', '.join(able)}")
    with_engines = [name for name, entry in methods.items() if "engine" in entry.settings]
    if engine == options.Engine.VECTORIZED and method not in with_engines:
        raise CommandError(f"{method} has no engines: --engine is for {', '.join(with_engines)}")
    model_options.check_kinds(binary=binary, counts=counts, levels=levels is not None)
    timing = Timing(time, known_at, delay, rest)
    if labels is not None and not binary:
        raise CommandError("--labels is for --binary")
    classes = text_labels.parsed(labels)
    is_events = events or (not own and catalogue.describe(data).events_over)
    settings = {"rank": RANK} | model_options.settings(
        rank=rank, hidden=hidden, activation=activation, committee=committee, memory=memory, clip=clip,
        batch_size=batch_size,
    )  # fmt: skip
    _check_settings(methods[method], settings)
    if binary or is_events or levels is not None:
        kind_of_values = "events" if is_events else "binary" if binary else "levels"
        model_options.check_of_values(settings, kind_of_values)
    if method in with_engines:
        settings["engine"] = engine.value
    if passes is not None:
        settings["passes"] = options.passes(passes)
    _check_events(data, events, over, value, own=own, values=binary or counts or levels is not None)
    names, schema = options.modes_and_schema(modes, kind)
    _check_attributes(schema, attributes, method=method)
    rejects = rejects or Path(f"{Path(data).name.split('.')[0] or 'evaluate'}.rejects.jsonl")

    def describe(estimator: Any) -> frozenset[str]:
        from spidertensor.cli import attribute_files

        return attribute_files.set_all(estimator, attributes)

    def own_file() -> tuple[Dataset, dict[str, Any]]:
        source = options.source(data, format, columns, delimiter, encoding, decimal)
        return evaluated_file.load(
            source, BadRows(source, on_bad, rejects), names, value, timing, over,
            schema=schema, attributes=attributes, binary=binary or events, counts=counts,
            levels=model_options.levels(levels),
            classes=None if classes is None or are_zero_one(classes) else classes,
            missing=missing_id.value, rules=bin,
        )  # fmt: skip

    if is_events:
        files_only = {"modes": modes, "value": value, "time": time, "format": format, "columns": columns}
        if not own:
            _check_no_columns(data, **files_only, delimiter=delimiter, encoding=encoding, decimal=decimal)
        not_for_events = {
            "--plot": plot,
            "--test": test,
            "--known-at": known_at,
            "--delay": delay,
            "--rest": rest,
        }
        if given := [name for name, each in not_for_events.items() if each is not None]:
            raise CommandError(f"{given[0]} does not apply to the events of {data}")
        _check_files(None, rejects if on_bad == OnBad.FILE else None, data if own and data != "-" else None)
        record = ranked_events.evaluate_events(
            data,
            own_file if own else lambda: (catalogue.load(data), {}),
            methods,
            method,
            protocol and protocol.value,
            settings,
            seed,
            describe,
        )
        (output.print_json if as_json else ranked_events.show)(record)
        return
    plan = plan_of(
        protocol, test, timing, own=own, drawn=plot is not None, settings=settings, seed=seed
    ).checked(method)
    _check_files(plot, rejects if on_bad == OnBad.FILE else None, data if own and data != "-" else None)
    about: dict[str, Any] = {}
    if own:
        loaded, about = own_file()
    else:
        written = {"format": format, "columns": columns, "delimiter": delimiter, "encoding": encoding}
        described = None if schema is None else catalogue.described
        if described is None:
            _check_no_columns(data, modes=modes)
        written |= {"levels": levels, "attributes": attributes, "value": value, "time": time}
        _check_no_columns(data, decimal=decimal, **written)
        loaded = catalogue.load(data) if schema is None or described is None else described(data, schema)
        if loaded.schema is not None:
            about = {"attributes": FittedColumns(loaded.schema).kinds}
    tested = plan.test if plan.protocol == Protocol.HELD_OUT and loaded.tests else None
    asked = {
        "dataset": data,
        **about,
        "method": method,
        "engine": engine.value if method in with_engines else None,
        "learning_rate": methods[method].tuned(data).get("learning_rate"),
        **plan.shown,
        "protocol": plan.protocol.value,
        "test": tested,
    }
    rows = {method: rows_of(loaded, methods[method], plan, describe)}
    for name in catalogue.floors:
        static = plan.protocol in (Protocol.PREQUENTIAL, Protocol.CLOCK) and methods[name].unit == "all"
        able = methods[name].counts or not loaded.likelihood.counts
        if name not in rows and able and not static:  # static floors have no prequential score
            rows[name] = rows_of(loaded, methods[name], plan)
    is_ordinal = loaded.likelihood.ordinal
    if is_ordinal and method == "spider" and plan.passes == 1:
        rows[CONTINUOUS.name] = rows_of(loaded, CONTINUOUS, plan, describe)
    last = {name: each[-1] for name, each in rows.items()}
    shown = ("score", "log_density", *(["accuracy"] if is_ordinal else []))
    compared = [name for name in (*catalogue.floors, CONTINUOUS.name) if name in last]
    floors = {name: {key: last[name][key] for key in shown} for name in compared}
    record = asked | last[method] | {"test": tested, "floors": floors}
    record["notes"] = _notes(loaded, plan.protocol, record) + _worse_than_a_floor(record, methods)
    if plot is not None:
        _draw(plot, rows)
    (output.print_json if as_json else evaluated.show)(record)
    if plot is not None:
        output.note(f"picture: {plot}")


def _check_no_columns(data: str, **given: str | list[str] | None) -> None:
    for name, text in given.items():
        if text is not None:
            raise CommandError(f"--{name} is for files, and {data} is not a file")


def _check_events(
    data: str, events: bool, over: str | None, value: str | None, *, own: bool, values: bool
) -> None:
    if events and not own:
        raise CommandError(f"--events is for files, and {data} is not a file")
    if events and (value is not None or values):
        raise CommandError("--events means rows without a value; omit --value, --binary and --counts")
    if events and over is None:
        raise CommandError("--events needs --over, the mode to rank, such as --over song")
    if over is not None and not events:
        raise CommandError("--over needs --events")


def _check_settings(method: Entry, given: Mapping[str, Any]) -> None:
    """CommandError for settings that a method does not have."""
    for name in given:
        if name not in ("rank", "batch_size", *method.settings):
            raise CommandError(f"{method.name} has no setting --{name}")
    if isinstance(given.get("rank"), tuple) and method.name != "spider":
        raise CommandError(f"{method.name} has the same rank in all modes: pass one number to --rank")


def _check_attributes(schema: Schema | None, attributes: list[str] | None, *, method: str) -> None:
    if attributes and schema is None:
        raise CommandError("--attributes needs attributes: name them in --modes as well, such as movie+year")
    if schema is None:
        return
    if method != "spider":
        raise CommandError(f"{method} learns from ids alone: name only columns of ids in --modes")


def _check_files(plot: Path | None, rejects: Path | None, data: str | None) -> None:
    """Check output files before anything is read or learned."""
    files.check_apart({"DATA": data, "--plot": plot, "--rejects": rejects})
    if plot is not None:
        files.check_picture(plot)
    if rejects is not None:
        files.check_writable(rejects)


def _draw(path: Path, rows: dict[str, list[dict[str, Any]]]) -> None:
    from spidertensor.evaluation.draw import overview
    from spidertensor.writing import replacing

    figure = overview(rows)
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower(), dpi=150)


def _notes(dataset: Dataset, protocol: Protocol, record: dict[str, Any]) -> list[str]:
    if protocol not in (Protocol.PREQUENTIAL, Protocol.CLOCK):
        return [dataset.held_out_note] if dataset.held_out_note else []
    skipped = f"the first tenth of the stream, {record['skipped']:,} entries, is learned but not scored"
    if protocol == Protocol.CLOCK:  # nothing is known before
        skipped = f"the first {record['skipped']:,} entries of the stream are learned but not scored"
    return [skipped, dataset.prequential_note] if dataset.prequential_note else [skipped]


def _worse_than_a_floor(record: dict[str, Any], methods: Mapping[str, Entry]) -> list[str]:
    from spidertensor.evaluation.methods import CONTINUOUS
    from spidertensor.evaluation.metrics import METRICS

    name = "score" if record["accuracy"] is None else "log_density"  # levels are a matter of probabilities
    loss = METRICS[record["metric"] if name == "score" else name].loss
    better = [
        {**methods, CONTINUOUS.name: CONTINUOUS}[each].label
        for each, floor in record["floors"].items()
        if loss(floor[name]) < loss(record[name])
    ]
    if not better or methods[record["method"]].role == "floor":
        return []
    verb = "predicts" if len(better) == 1 else "predict"
    return [f"{' and '.join(better)} {verb} these values better than {record['method']}"]
