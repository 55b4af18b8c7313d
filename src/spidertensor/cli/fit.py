"""`spider fit`: stream a source through an estimator, and stop and go on without losing or doubling a row."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from spidertensor.cli import common
from spidertensor.cli.common import CommandError, OnBad
from spidertensor.cli.evaluation import Engine

Modes = Annotated[
    str | None, typer.Option(metavar="NAMES", help="The columns that hold ids, with commas: user,movie.")
]
Value = Annotated[str | None, typer.Option(metavar="NAME", help="The column that holds the value.")]
Binary = Annotated[bool, typer.Option("--binary", help="Values are 0 or 1: learn probabilities.")]
Model = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The model file. By default SOURCE with another ending.")
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on where the model stopped, if there is one; refused if the last line learned has changed.",
    ),
]
Add = Annotated[
    bool, typer.Option("--add", help="Learn SOURCE from its start on top of the model, which must be there.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace an existing model and its file of rejected rows.")
]
Every = Annotated[
    str, typer.Option(metavar="TIME", help="How often to save on the way: 30s, 5m, 1h or never.")
]
Rank = Annotated[
    str | None,
    typer.Option(metavar="N", help="Elements of a node's factors for the network: 8, or per mode: 8,4."),
]
Hidden = Annotated[str | None, typer.Option(metavar="N,N", help="Widths of the hidden layers: 50,50.")]
Activation = Annotated[
    str | None, typer.Option(metavar="NAME", help="relu, tanh, sigmoid, softplus or gelu.")
]
OnEngine = Annotated[
    Engine | None,
    typer.Option(
        "--engine",
        metavar="sequential|vectorized",
        help="Entry by entry, compiled, the default; or a batch at once with JAX, the default of --network.",
    ),
]
Paper = Annotated[bool, typer.Option("--paper", help="The paper's settings.")]
Scaling = Annotated[
    str | None,
    typer.Option(
        metavar="SHIFT,SCALE",
        help="Shift and scale of the values: 3.5,1.1. By default from the first values.",
    ),
]
BatchSize = Annotated[
    int | None, typer.Option(metavar="N", help="Entries between two refinements of the prior.")
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Of the starting weights.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def fit(
    source: common.SourceName,
    modes: Modes = None,
    value: Value = None,
    binary: Binary = False,
    model: Model = None,
    resume: Resume = False,
    add: Add = False,
    force: Force = False,
    checkpoint_every: Every = "30s",
    on_bad: common.OnBadOption = OnBad.RAISE,
    rejects: common.Rejects = None,
    format: common.Format = None,  # noqa: A002
    columns: common.Columns = None,
    rank: Rank = None,
    hidden: Hidden = None,
    activation: Activation = None,
    network: common.NetworkName = None,
    engine: OnEngine = None,
    paper: Paper = False,
    scaling: Scaling = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    quiet: Quiet = False,
    as_json: common.AsJson = False,
) -> None:
    """Learn the rows of SOURCE in their order, in one pass and constant memory, and write a model.

    \b
    spider fit ratings.csv --modes user,movie --value rating
    spider fit clicks.jsonl.gz --modes user,page,hour --value clicked --binary
    spider fit tuesday.parquet --model week.spider --add
    spider fit a.csv --modes user,movie --value rating --network networks:costco
    zcat log.gz | spider fit - --modes host,port --value bytes --model l.spider

    Ctrl-C or SIGTERM saves and stops. With --resume the same command goes on at the first row not yet learned
    after a signal, a crash or new rows at the end of SOURCE; the model is as if it had never stopped (but for
    a batch of --engine vectorized that the signal cut in two).
    A last line without its end is learned as it is: if it is longer when SOURCE has grown, --resume refuses.
    """
    if resume + add + force > 1:
        raise CommandError("only one of --resume, --add and --force is possible")
    path = model or Path("model.spider" if source == "-" else f"{Path(source).name.split('.')[0]}.spider")
    rejects = rejects or path.with_suffix(".rejects.jsonl")
    written = {"--model": path} | ({"--rejects": rejects} if on_bad == OnBad.FILE else {})
    common.check_apart({"SOURCE": None if source == "-" else source, **written})
    for each in written.values():
        _check_target(each, may_exist=resume or add or force)
    seconds = common.seconds(checkpoint_every)
    if quiet:
        logging.getLogger("spidertensor").setLevel(logging.WARNING)
    if network is not None and (hidden is not None or activation is not None):
        raise CommandError("--network takes the place of --hidden and --activation")
    if network is not None and engine is None:
        engine = Engine.VECTORIZED
    settings = _settings(rank, hidden, activation, engine, scaling, batch_size, seed)
    from spidertensor.cli import learning  # the heavy part, after the cheap mistakes
    from spidertensor.sources import Source

    opened = Source.named(source, format, None if columns is None else common.words(columns))
    names = None if modes is None else common.words(modes)
    if add and not path.exists():
        raise CommandError(f"{path}: no such model to add to")
    if (resume and path.exists()) or add:
        learner = learning.reopen(path, opened, value, add=add, network=network)
        learning.check_same(learner, names, value, binary=binary, paper=paper, **settings)
    else:
        if network is not None:
            settings["network"] = common.named_network(network)
        learner = learning.start(path, opened, names, value, binary=binary, paper=paper, **settings)
    after = learner.row if resume else None
    rejected = common.BadRows(opened, on_bad, rejects, after=after, replace=force)
    raise typer.Exit(learning.run(learner, rejected, every=seconds, quiet=quiet, as_json=as_json))


def _check_target(path: Path, *, may_exist: bool) -> None:
    if path.exists() and not may_exist:
        raise CommandError(f"{path} exists: --resume goes on with it, --add adds to it, --force replaces it")
    common.check_writable(path)


def _settings(
    rank: str | None,
    hidden: str | None,
    activation: str | None,
    engine: Engine | None,
    scaling: str | None,
    batch_size: int | None,
    seed: int | None,
) -> dict[str, Any]:
    """Those that are given, as the estimators take them."""
    ranks = None if rank is None else common.numbers("--rank", rank)
    settings = {
        "rank": ranks[0] if ranks and len(ranks) == 1 else ranks and tuple(ranks),
        "hidden": None if hidden is None else tuple(common.numbers("--hidden", hidden)),
        "activation": activation,
        "engine": engine and engine.value,
        "scaling": None if scaling is None else tuple(common.numbers("--scaling", scaling, float)),
        "batch_size": batch_size,
        "random_state": seed,
    }
    return {name: setting for name, setting in settings.items() if setting is not None}
