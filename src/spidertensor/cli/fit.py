"""`spider fit`: learn a source; can stop and continue without losing or repeating a row."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from spidertensor.cli import bad_rows, event_options, files, model_options, options, streams
from spidertensor.cli import workers as several
from spidertensor.cli.bad_rows import BadRows, OnBad
from spidertensor.cli.errors import CommandError
from spidertensor.cli.options import Engine

Model = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The model file. Defaults to SOURCE with the extension .spider."),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue where the model stopped, or start a new one.",
    ),
]
Add = Annotated[bool, typer.Option("--add", help="Learn all of SOURCE on top of an existing model.")]
Again = Annotated[
    bool, typer.Option("--again", help="With --add: learn the file even if the model has already learned it.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing model and its rejects file.")]
Every = Annotated[str, typer.Option(metavar="TIME", help="Time between saves: 30s, 5m, 1h or never.")]
Keep = Annotated[
    int, typer.Option(metavar="N", min=0, help="Keep the model as it was before each of the last N runs.")
]
PredictionsFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write the prediction made for each row just before learning it: csv, tsv or jsonl.",
    ),
]
OnEngine = Annotated[
    Engine | None,
    typer.Option(
        "--engine",
        metavar="sequential|vectorized",
        help="Compiled, entry by entry (default); or JAX, batch by batch (default with --network).",
    ),
]
Paper = Annotated[bool, typer.Option("--paper", help="Use the settings of the paper.")]
Time = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column with the time of a row: learn in this order, judge by the latest, or random events.",
    ),
]
KnownAt = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="With --time: when the value of a row is known. Predict each row at its time, learn it then.",
    ),
]
Shuffle = Annotated[bool, typer.Option("--shuffle", help="Learn the rows of a file once, in random order.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


GROUPS = {
    "Data": (
        "modes", "value", "kind", "attributes", "format", "columns", "delimiter", "encoding", "decimal",
        "missing_id", "bin", "on_bad", "rejects", "time", "known_at", "passes", "shuffle",
    ),
    "Values": (
        "binary", "labels", "counts", "levels", "events", "over", "negatives", "remember_seen", "scaling",
        "bounds", "clip",
    ),
    "Model": (
        "rank", "hidden", "activation", "network", "committee", "memory", "max_nodes", "engine", "paper",
        "batch_size", "seed",
    ),
    "Model file": (
        "model", "resume", "add", "again", "force", "checkpoint_every", "keep", "predictions",
    ),
    "Stream": ("until_end", "on_gap", "dead_letter", "broker_config"),
    "Workers": ("workers", "cluster", "part"),
}  # fmt: skip


def fit(
    source: options.SourceName,
    modes: options.Modes = None,
    value: model_options.Value = None,
    kind: options.Kinds = None,
    attributes: options.AttributeFiles = None,
    binary: model_options.Binary = False,
    counts: model_options.Counts = False,
    levels: model_options.Levels = None,
    labels: model_options.Labels = None,
    events: event_options.Events = False,
    over: event_options.Over = None,
    negatives: event_options.Negatives = None,
    remember_seen: event_options.RememberSeen = None,
    model: Model = None,
    resume: Resume = False,
    add: Add = False,
    again: Again = False,
    force: Force = False,
    checkpoint_every: Every = "30s",
    keep: Keep = 0,
    predictions: PredictionsFile = None,
    on_bad: bad_rows.OnBadOption = OnBad.RAISE,
    rejects: bad_rows.Rejects = None,
    format: options.Format = None,  # noqa: A002
    columns: options.Columns = None,
    delimiter: options.Delimiter = None,
    encoding: options.Encoding = None,
    decimal: options.Decimal = None,
    missing_id: options.MissingIds = None,
    bin: options.BinRules = None,  # noqa: A002
    until_end: streams.UntilEnd = False,
    on_gap: streams.OnGapOption = streams.OnGap.RAISE,
    dead_letter: streams.DeadLetter = None,
    broker_config: streams.BrokerConfig = None,
    rank: model_options.Rank = None,
    hidden: model_options.Hidden = None,
    activation: model_options.Activation = None,
    network: options.NetworkName = None,
    engine: OnEngine = None,
    paper: Paper = False,
    scaling: options.Scaling = None,
    bounds: options.Bounds = None,
    memory: options.Memory = None,
    max_nodes: options.MaxNodes = None,
    committee: options.Committee = None,
    clip: model_options.Clip = None,
    batch_size: model_options.BatchSize = None,
    seed: options.Seed = None,
    passes: model_options.Passes = None,
    time: Time = None,
    known_at: KnownAt = None,
    shuffle: Shuffle = False,
    workers: several.Workers = None,
    cluster: several.OnCluster = None,
    part: several.Part = None,
    quiet: Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Learn the rows of a source and write a model.

    \b
    spider fit ratings.csv --modes user,movie --value rating
    spider fit clicks.jsonl.gz --modes user,page,hour --value clicked --binary
    spider fit redis://localhost:6379/ratings --modes user,movie --value rating
    spider fit r.csv --modes user+age,movie+tags --kind 'tags=many:|' --value v
    spider fit r.csv --modes user,movie+year --attributes movie=m.csv --value v

    The rows of a file are read and then learned several times, in random order; see docs/passes.md. Rows
    of a pipe or a stream, and more rows of a known model, are learned once, in order and in constant
    memory. Ctrl-C saves and stops; --resume continues with the first row not yet learned. The score is
    shown next to two floors: the mean of the values so far, and one number per node.

    See docs/files.md for files, docs/which-values.md for --binary, --counts, --levels and --events,
    docs/streams.md for streams, and docs/cluster.md for --workers.
    """
    if resume + add + force > 1:
        raise CommandError("use only one of --resume, --add and --force")
    if again and not add:
        raise CommandError("--again is for --add")
    model_options.check_kinds(binary=binary, counts=counts, levels=levels is not None)
    for name, given in {"scaling": scaling, "bounds": bounds}.items():
        if (counts or levels is not None) and given is not None:
            raise CommandError(f"--{name} is for continuous values, not with --counts or --levels")
    if labels is not None and not binary:
        raise CommandError("--labels is for --binary")
    several.check(workers, cluster, part)
    path = model or Path("model.spider" if source == "-" else f"{Path(source).name.split('.')[0]}.spider")
    rejects = rejects or path.with_suffix(".rejects.jsonl")
    written = {"--model": path} | ({"--rejects": rejects} if on_bad == OnBad.FILE else {})
    read = {"SOURCE": None if source == "-" else source, "--predictions": predictions}
    files.check_apart({**read, **written})
    if predictions is not None:
        files.check_writable(predictions)
    for each in written.values():
        if not (resume or add or force):
            _check_new(each)
        files.check_writable(each)
    seconds = options.seconds(checkpoint_every)
    if quiet:
        logging.getLogger("spidertensor").setLevel(logging.WARNING)
    if network is not None and (hidden is not None or activation is not None):
        raise CommandError("--network replaces --hidden and --activation")
    if network is not None and engine is None:
        engine = Engine.VECTORIZED
    settings = model_options.settings(
        rank=rank, hidden=hidden, activation=activation, engine=engine, scaling=scaling, bounds=bounds,
        memory=memory, committee=committee, clip=clip, batch_size=batch_size, seed=seed,
    )  # fmt: skip
    if counts:
        settings["likelihood"] = "count"
    if (known := model_options.levels(levels)) is not None:
        settings |= {"likelihood": "ordinal", "levels": known}
    if events and (value is not None or binary or counts or levels is not None):
        raise CommandError("--events means rows without a value; omit --value, --binary and --counts")
    settings |= event_options.settings(
        events, over, negatives, remember_seen, new=not (path.exists() and (resume or add))
    )
    if max_nodes is not None:
        settings["max_nodes"] = options.max_nodes(max_nodes)
    rules = options.bin_rules(bin)
    names, schema = options.modes_and_schema(modes, kind)
    # slow imports, after the quick checks above
    from spidertensor.cli import attribute_files, fit_loop, passes_options, run_start, text_labels
    from spidertensor.cli.same_settings import add_columns, check_same

    written = (format, columns, delimiter, encoding, decimal)
    opened = streams.opened(source, *written, until_end=until_end, on_gap=on_gap, config=broker_config)
    dead = streams.dead_letters(dead_letter, broker_config, opened)
    about = {"binary": binary, "classes": text_labels.parsed(labels), "paper": paper, "rules": rules}
    about["schema"] = schema
    with files.locked(path):
        files.check_no_journal(path)
        if not (resume or add or force):
            _check_new(path)  # checked again under the lock
        if add and not path.exists():
            raise CommandError(f"{path}: no such model to add to")
        if (resume and path.exists()) or add:
            run = run_start.resume(path, opened, value, add=add, again=again, network=network)
            if events and not run.learner.estimator.learns_events:
                raise CommandError(f"{path} learns values, so --events does not apply")
            settings = event_options.with_mode_numbers(settings, run.learner.modes)
            check_same(run.learner, names, value, **about, **settings)
            run.added = add_columns(run.learner, schema)
        else:
            if network is not None:
                settings["network"] = files.network_by_name(network)
            run = run_start.start(path, opened, names, value, **about, **settings)
        run.missing, run.keep = missing_id or run.missing, keep
        asked = {"--passes": passes, "--time": time, "--known-at": known_at, "--shuffle": shuffle or None}
        limits = {"--workers": workers or cluster, "--predictions": predictions}
        passes_options.choose(run, asked, limits)
        if events and negatives is None and run.collects and run.learner.estimator.passes != 1:
            run.draw(event_options.for_passes())
        run.described = attribute_files.set_all(run.learner.estimator, attributes)
        if predictions is not None:
            run.open_predictions(predictions, replace=force or (resume and run.new))
        after = run.row if resume else None
        rejected = BadRows(opened, on_bad, rejects, after=after, replace=force, dead_letters=dead)
        with (
            run.predictions or nullcontext(),
            several.placed(run.learner.estimator, workers, cluster, part) as placed,
        ):
            run.rounds = placed and placed.rounds
            code = fit_loop.learn_source(run, rejected, every=seconds, quiet=quiet, as_json=as_json)
    raise typer.Exit(code)


def _check_new(path: Path) -> None:
    if path.exists():
        raise CommandError(
            f"{path} exists: use --resume to continue, --add to add to it, or --force to replace it"
        )
