"""`spider-study data`: the data sets that spider-study evaluate knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from spidertensor.cli import options, output

if TYPE_CHECKING:
    from spidertensor.evaluation.dataset import Info

data = typer.Typer(help="List, describe and download data sets.", no_args_is_help=True, rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="NAME", help="A data set of spider-study data list.")]


@data.command("list")
def list_(as_json: options.AsJson = False) -> None:
    """List the data sets and which of them are on this machine."""
    from spidertensor_study import datasets

    infos = {info: datasets.on_disk(info.name) for info in map(datasets.describe, datasets.NAMES)}
    if as_json:
        output.print_json([_record(info) | {"path": path and str(path)} for info, path in infos.items()])
        return
    for_all = {info.name: "; on this machine" for info, path in infos.items() if path or not info.files}
    known = dict.fromkeys(datasets.ATTRIBUTES, "; with attributes")
    shown = [
        (each.name, each.about + known.get(each.name, "") + for_all.get(each.name, "")) for each in infos
    ]
    output.print_pairs("", shown)


def _record(info: Info) -> dict[str, Any]:
    """A description with the attributes by mode."""
    from spidertensor_study import datasets

    return info.record() | {"attributes": datasets.ATTRIBUTES.get(info.name, {})}


@data.command("info")
def info(name: Name, as_json: options.AsJson = False) -> None:
    """Show what a data set is, its origin and its licence."""
    from spidertensor_study import datasets

    known = _record(datasets.describe(name))
    if as_json:
        output.print_json(known)
        return
    of_nodes = known.pop("attributes")
    known["attributes"] = "; ".join(f"{mode}: {', '.join(names)}" for mode, names in of_nodes.items())
    shown = {
        key: ", ".join(value) if isinstance(value, tuple) else str(value) for key, value in known.items()
    }
    output.print_pairs(name, [(key.replace("_", " "), text) for key, text in shown.items() if text])


@data.command("get")
def get(name: Name) -> None:
    """Find or download a data set, check it, and print its path.

    The folder $SPIDER_DATA and the user's cache folder are searched before it is downloaded.
    """
    from spidertensor_study import datasets

    loaded = datasets.load(name)
    output.note(f"{name}: {len(loaded.train.value):,} training entries. Licence: {loaded.licence}")
    output.say("generated, no file" if name == "synthetic" else str(datasets.locate(name)))
