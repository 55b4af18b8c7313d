"""`spider similar`: the nodes that do to predictions what one does."""

from __future__ import annotations

from typing import Annotated

import typer

from spidertensor.cli import files, options, output
from spidertensor.cli.errors import CommandError


def similar(
    model: options.ModelFile,
    mode: Annotated[str, typer.Argument(metavar="MODE", help="The mode of the node.")],
    node: Annotated[str, typer.Argument(metavar="ID", help="Its id.")],
    n: Annotated[int, typer.Option("-n", metavar="N", min=1, help="Number of nodes to show.")] = 10,
    attributes: options.AttributeFiles = None,
    network: options.NetworkName = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the nodes of a mode that are most like one of them.

    Two films are alike if those who like the one like the other, however good both are. score is 1 for nodes
    that do the same to every prediction, 0 for nodes that have nothing in common; distance is how far the
    predictions for both are apart, on average.

    \b
    spider similar ratings.spider movie Alien
    spider similar ratings.spider movie 'Blade 4' --attributes movie=movies.csv
    """
    from spidertensor.cli import attribute_files
    from spidertensor.learner.attributes import modes_with_ids

    estimator = files.load_model(model, network)
    every = estimator.mode_names_
    names = [every[each] for each in modes_with_ids(estimator, len(every))]
    if mode not in names:
        raise CommandError(f"{model} has no mode {mode!r}, only: {', '.join(names)}")
    attribute_files.set_all(estimator, attributes)
    number = every.index(mode)
    raw = files.parse_id(estimator, number, node)
    found = estimator.similar(number, raw, n)
    if as_json:
        nodes = [each._asdict() for each in found]
        output.print_json({"model": str(model), "mode": mode, "id": raw, "nodes": nodes})
        return
    rows = [[output.shown(each.id), f"{each.score:.3f}", f"{each.distance:.4g}"] for each in found]
    output.print_table(f"like {mode} {output.shown(raw)}", [mode, "score", "distance"], rows)
