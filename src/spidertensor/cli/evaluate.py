"""`spider evaluate`: how well a method does on a data set."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spidertensor.cli import options, output
from spidertensor.cli.errors import CommandError

if TYPE_CHECKING:
    from spidertensor.study import datasets

Dataset = Annotated[str, typer.Argument(metavar="NAME", help="A data set of spider data list.")]


class Protocol(StrEnum):
    HELD_OUT = "held-out"
    PREQUENTIAL = "prequential"


class Test(StrEnum):
    PAPER = "paper"
    CLEAN = "clean"


def evaluate(
    dataset: Dataset,
    method: Annotated[str, typer.Option(metavar="NAME", help="A method of spider methods.")] = "spider",
    rank: Annotated[int, typer.Option(metavar="N", min=1, help="Length of a node's factors.")] = 8,
    batch_size: Annotated[int, typer.Option(metavar="N", min=1, help="Entries per batch.")] = 256,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Seed of the split, the order and the starting weights.")
    ] = 0,
    protocol: Annotated[
        Protocol,
        typer.Option(
            metavar="held-out|prequential",
            help="Learn, then test; or predict each entry before it is learned, in time order.",
        ),
    ] = Protocol.HELD_OUT,
    test: Annotated[
        Test,
        typer.Option(
            metavar="paper|clean",
            help="Test set of acc and dblp: as published, or with zeros drawn uniformly.",
        ),
    ] = Test.PAPER,
    engine: Annotated[
        options.Engine,
        typer.Option(
            metavar="sequential|vectorized",
            help="For the spider methods: entry by entry, compiled; or a batch at once with JAX.",
        ),
    ] = options.Engine.SEQUENTIAL,
    as_json: options.AsJson = False,
) -> None:
    """Score a method on a data set, next to simple baselines.

    \b
    spider evaluate movielens-1m --method spider --rank 8
    spider evaluate flights --protocol prequential
    spider evaluate acc --test clean --method biases --json
    """
    from spidertensor.study import datasets
    from spidertensor.study.registry import FLOORS, METHODS

    if method not in METHODS:
        raise CommandError(f"unknown method {method!r}: choose one of {', '.join(METHODS)}")
    with_engines = [name for name, named in METHODS.items() if "engine" in named.settings]
    if engine == options.Engine.VECTORIZED and method not in with_engines:
        raise CommandError(f"{method} has no engines: --engine is for {', '.join(with_engines)}")
    loaded = datasets.load(dataset)
    settings: dict[str, Any] = {"rank": rank, "batch_size": batch_size, "seed": seed}
    tested = test.value if protocol == Protocol.HELD_OUT and loaded.tests else None
    asked = {
        "dataset": dataset,
        "method": method,
        "engine": engine.value if method in with_engines else None,
        "learning_rate": METHODS[method].tuned(dataset).get("learning_rate"),
        **settings,
        "protocol": protocol.value,
        "test": tested,
    }
    with output.working(f"{method} learns {dataset}; the first time it compiles for about 15 s"):
        row = _score(loaded, method, protocol, test, engine=engine, **settings)
    floors = {}
    for name in FLOORS:
        if protocol == Protocol.PREQUENTIAL and METHODS[name].unit == "all":
            continue  # a static floor has no prequential score
        with output.working(f"floor: {name}"):
            floor = row if name == method else _score(loaded, name, protocol, test, **settings)
        floors[name] = {"score": floor["score"], "log_density": floor["log_density"]}
    record = asked | row | {"test": tested, "floors": floors, "notes": _notes(dataset, protocol, row)}
    (output.print_json if as_json else _show)(record)


def _score(
    dataset: datasets.Dataset,
    name: str,
    protocol: Protocol,
    test: Test,
    engine: options.Engine = options.Engine.SEQUENTIAL,
    *,
    rank: int,
    batch_size: int,
    seed: int,
) -> dict[str, Any]:
    from spidertensor.study import protocols
    from spidertensor.study.grid import method_of
    from spidertensor.study.registry import METHODS

    settings = {"method": name, "rank": rank, "batch_size": batch_size, "seed": seed, "engine": engine.value}
    try:
        method, how = method_of(dataset, METHODS[name].tuned(dataset.name) | settings)
    except ModuleNotFoundError as error:
        raise CommandError(f"{name} needs {error.name}: pip install 'spidertensor[jax]'") from None
    if protocol == Protocol.HELD_OUT:
        rows = protocols.held_out(method, *dataset.split(seed, test.value), **how)
    elif method.unit != "all":
        rows = protocols.prequential(method, dataset.in_time_order(), **how)
    else:
        raise CommandError(f"{name} sees all entries at once: it has no prequential score")
    return list(rows)[-1]


def _notes(dataset: str, protocol: Protocol, row: dict[str, Any]) -> list[str]:
    notes = []
    if protocol == Protocol.PREQUENTIAL:
        notes.append(f"the first tenth of the stream, {row['skipped']:,} entries, is learned but not scored")
        if dataset == "movielens-1m":
            notes.append(
                "a third of the timestamps are estimates, and within an hour high and low ratings stand "
                "apart: this order gives some ratings away"
            )
    elif dataset in ("acc", "dblp"):
        notes.append(
            "half of the training entries are non-zeros but a tenth of the test entries: "
            "coverage and calibration measure that shift"
        )
    return notes


def _show(record: dict[str, Any]) -> None:
    metric = output.METRICS[record["metric"]]
    test = f", {record['test']} test" if record["test"] else ""
    title = (
        f"{record['dataset']}, {record['protocol']}{test}: rank {record['rank']}, "
        f"batch size {record['batch_size']}, seed {record['seed']}"
    )
    rows = [[record["method"], f"{record['score']:.4f}", f"{record['log_density']:.4f}"]]
    for name, floor in record["floors"].items():
        rows.append([f"floor: {name}", f"{floor['score']:.4f}", f"{floor['log_density']:.4f}"])
    output.print_table(title, ["", metric, "log density"], rows)
    shown = {
        "learning rate, tuned on this data set": ("learning_rate", "g"),
        "log loss": ("log_loss", ".4f"),
        "calibration error": ("calibration_error", ".4f"),
        "seconds": ("seconds", ".1f"),
        "entries per second": ("entries_per_second", ",.0f"),
        "rejected updates": ("rejected", ",d"),
    }
    pairs = [
        (label, format(record[key], how)) for label, (key, how) in shown.items() if record[key] is not None
    ]
    notes = [("note", note) for note in record["notes"]]
    output.print_pairs("", [*_coverages(record), *pairs, *notes])


def _coverages(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Of plain intervals and, where the method has them, of calibrated ones."""
    shown = {
        "coverage of 50 % intervals": ("{}_50",),
        "coverage of 90 % intervals": ("{}_90",),
        "the same in the worst windows": ("{}_90_lowest", "{}_90_highest"),
    }
    pairs = []
    for label, keys in shown.items():
        texts = []
        for kind, said in (("coverage", ""), ("calibrated", "calibrated ")):
            shares = [record[key.format(kind)] for key in keys]
            if None not in shares:
                texts.append(said + " to ".join(f"{share:.1%}" for share in shares))
        if texts:
            pairs.append((label, ", ".join(texts)))
    return pairs
