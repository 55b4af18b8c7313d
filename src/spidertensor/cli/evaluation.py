"""`spider evaluate`, `spider data` and `spider demo`: real data sets, and how well a method does on them."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spidertensor.cli import common
from spidertensor.cli.common import CommandError

if TYPE_CHECKING:
    from spidertensor.study.datasets import Dataset

data = typer.Typer(
    help="The data sets that spider evaluate knows.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="See spider data list.")]


_METHOD = "spider, spider-plain, spider-paper, mean, biases, ...: an unknown name lists them all."


class Protocol(StrEnum):
    HELD_OUT = "held-out"
    PREQUENTIAL = "prequential"


class Engine(StrEnum):
    SEQUENTIAL = "sequential"
    VECTORIZED = "vectorized"


class Test(StrEnum):
    PAPER = "paper"
    CLEAN = "clean"


def evaluate(
    dataset: Name,
    method: Annotated[str, typer.Option(metavar="NAME", help=_METHOD)] = "spider",
    rank: Annotated[
        int, typer.Option(metavar="N", min=1, help="Elements of a node's factors for the network.")
    ] = 8,
    batch_size: Annotated[int, typer.Option(metavar="N", min=1, help="Entries that arrive together.")] = 256,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Of the split, the order and the starting weights.")
    ] = 0,
    protocol: Annotated[
        Protocol,
        typer.Option(
            metavar="held-out|prequential",
            help="One pass, then a test; or each entry predicted, then learned, in time order.",
        ),
    ] = Protocol.HELD_OUT,
    test: Annotated[
        Test,
        typer.Option(
            metavar="paper|clean",
            help="Of acc and dblp: as published, or with zeros that do not give themselves away.",
        ),
    ] = Test.PAPER,
    engine: Annotated[
        Engine,
        typer.Option(
            metavar="sequential|vectorized",
            help="Of the spider methods: entry by entry, compiled; or a batch at once with JAX.",
        ),
    ] = Engine.SEQUENTIAL,
    as_json: common.AsJson = False,
) -> None:
    """Score a method on a data set, in one pass, beside the floors that any method must clear.

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
    if engine == Engine.VECTORIZED and method not in with_engines:
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
    with common.working(f"{method} learns {dataset}; the first time it compiles for 20 s"):
        row = _score(loaded, method, protocol, test, engine=engine, **settings)
    floors = {}
    for name in FLOORS:
        if protocol == Protocol.PREQUENTIAL and METHODS[name].unit == "all":
            continue  # a static floor has no prequential score
        with common.working(f"floor: {name}"):
            floor = row if name == method else _score(loaded, name, protocol, test, **settings)
        floors[name] = {"score": floor["score"], "log_density": floor["log_density"]}
    record = asked | row | {"test": tested, "floors": floors, "notes": _notes(dataset, protocol, row)}
    (common.print_json if as_json else _show)(record)


def _score(
    dataset: Dataset,
    name: str,
    protocol: Protocol,
    test: Test,
    engine: Engine = Engine.SEQUENTIAL,
    *,
    rank: int,
    batch_size: int,
    seed: int,
) -> dict[str, Any]:
    from spidertensor.study import protocols as protocols
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
    metric = {"rmse": "RMSE", "auc": "AUC"}[record["metric"]]
    test = f", {record['test']} test" if record["test"] else ""
    title = (
        f"{record['dataset']}, {record['protocol']}{test}: rank {record['rank']}, "
        f"batch size {record['batch_size']}, seed {record['seed']}"
    )
    rows = [[record["method"], f"{record['score']:.4f}", f"{record['log_density']:.4f}"]]
    for name, floor in record["floors"].items():
        rows.append([f"floor: {name}", f"{floor['score']:.4f}", f"{floor['log_density']:.4f}"])
    common.print_table(title, ["", metric, "log density"], rows)
    shown = {
        "learning rate, tuned on this data set": ("learning_rate", "g"),
        "coverage of 50 % intervals": ("coverage_50", ".1%"),
        "coverage of 90 % intervals": ("coverage_90", ".1%"),
        "log loss": ("log_loss", ".4f"),
        "calibration error": ("calibration_error", ".4f"),
        "seconds": ("seconds", ".1f"),
        "entries per second": ("entries_per_second", ",.0f"),
        "rejected updates": ("rejected", ",d"),
    }
    pairs = [
        (label, format(record[key], how)) for label, (key, how) in shown.items() if record[key] is not None
    ]
    common.print_pairs("", [*pairs, *(("note", note) for note in record["notes"])])


@data.command("list")
def list_(as_json: common.AsJson = False) -> None:
    """List the data sets, and which of them are on this machine."""
    from spidertensor.study import datasets

    infos = {info: datasets.on_disk(info.name) for info in map(datasets.describe, datasets.NAMES)}
    if as_json:
        common.print_json([info.record() | {"path": path and str(path)} for info, path in infos.items()])
        return
    for_all = {info.name: "; on this machine" for info, path in infos.items() if path or not info.files}
    common.print_pairs("", [(info.name, info.about + for_all.get(info.name, "")) for info in infos])


@data.command("info")
def info(name: Name, as_json: common.AsJson = False) -> None:
    """Show what a data set is, where it comes from and its licence."""
    from spidertensor.study import datasets

    known = datasets.describe(name).record()
    if as_json:
        common.print_json(known)
        return
    shown = {
        key: ", ".join(value) if isinstance(value, tuple) else str(value) for key, value in known.items()
    }
    common.print_pairs(name, [(key.replace("_", " "), text) for key, text in shown.items() if text])


@data.command("get")
def get(name: Name) -> None:
    """Find the file of a data set, download it if need be, check it, and print its path.

    Looked for in the folder in $SPIDER_DATA, then in the user's cache folder, then where it is published.
    """
    from spidertensor.study import datasets

    loaded = datasets.load(name)
    common.note(f"{name}: {len(loaded.train.value):,} training entries. Licence: {loaded.licence}")
    print("made, not read" if name == "synthetic" else datasets.locate(name))


def demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the picture and the model.")] = Path(
        "demo-output"
    ),
    entries: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Learn only so many entries.")
    ] = None,
) -> None:
    """Stream a year of flights through SPIDER and watch it predict their delays."""
    from rich.console import Console

    from spidertensor.study import demo as module

    module.run(Console(file=sys.stdout), out, entries)
