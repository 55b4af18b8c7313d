"""`spider explain`: what the prediction for an entry is made of."""

from __future__ import annotations

from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spidertensor.cli import files, options, output, tables
from spidertensor.cli.errors import CommandError

if TYPE_CHECKING:
    from spidertensor.estimator.explain import Explanation
    from spidertensor.spider.likelihoods import Likelihood

WIDTH = 24  # characters of the longest bar


def explain(
    model: options.ModelFile,
    given: Annotated[
        list[str],
        typer.Option(
            metavar="MODE=ID",
            help="The id of a mode, such as user=42, for every mode. Also an attribute, such as hour=8.",
        ),
    ],
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the parts (png, pdf, svg).")] = None,
    attributes: options.AttributeFiles = None,
    network: options.NetworkName = None,
    as_json: options.AsJson = False,
) -> None:
    """Take the prediction for one entry apart.

    Its parts are the level, each node and attribute, each pair of modes, and the network. They add up to the
    prediction; for labels and counts to f, from which the last line is computed. Each
    has the standard deviation of what the model does not know about it, and a node the number of entries
    behind it.

    \b
    spider explain ratings.spider --given user=42 --given movie=Alien
    spider explain r.spider --given user=42 --given movie=Alien --plot why.png
    """
    from spidertensor.cli import attribute_files
    from spidertensor.learner.attributes import attribute_columns, modes_with_ids

    if plot is not None:
        files.check_picture(plot)
    estimator = files.load_model(model, network)
    every = estimator.mode_names_
    names = [every[each] for each in modes_with_ids(estimator, len(every))]
    others = [name for name in attribute_columns(estimator) if name not in names]
    texts = options.given(given, [*names, *others], model)
    if missing := [name for name in names if name not in texts]:
        raise CommandError(f"--given is missing for: {', '.join(missing)}")
    attribute_files.set_all(estimator, attributes)
    entry: Any = {
        name: tables.parse_attribute(estimator, name, text)
        if name in others
        else files.parse_id(estimator, every.index(name), text)
        for name, text in texts.items()
    }
    if not others and getattr(estimator, "feature_names_in_", None) is None:
        entry = tuple(entry[name] for name in names)  # the model knows no names
    found = estimator.explain(entry)
    likelihood = estimator.likelihood_
    if plot is not None:
        _draw(plot, found)
    if as_json:
        record = found._asdict() | {"parts": [part._asdict() for part in found.parts]}
        output.print_json({"model": str(model), "given": texts} | record)
        return
    _show(", ".join(given), found, likelihood)
    if plot is not None:
        output.note(f"picture: {plot}")


def _show(title: str, found: Explanation, likelihood: Likelihood) -> None:
    widest = max((abs(part.effect) for part in found.parts[1:]), default=0.0) or 1.0
    rows = []
    for part in found.parts:
        bar = "" if part.kind == "level" else _bar(part.effect / widest)
        entries = "" if part.entries is None else f"{part.entries:,}"
        rows.append([part.name, f"{part.effect:+.4g}", f"± {part.std:.2g}", bar, entries])
    rows.append(["sum", f"{found.latent:.4g}", f"± {found.std:.2g}", "", ""])
    if not (likelihood.normal and isclose(found.mean, found.latent, rel_tol=1e-9)):
        rows.append([likelihood.mean_name.replace("_", " "), f"{found.mean:.4g}", "", "", ""])
    output.print_table(title, ["", "adds", "", "", "entries"], rows)


def _bar(share: float) -> str:
    """A bar to the left or right of the middle. share: -1 to 1"""
    half = WIDTH // 2
    length = round(abs(share) * half)
    left, right = ("█" * length, "") if share < 0 else ("", "█" * length)
    return f"{left:>{half}}│{right:<{half}}│"


def _draw(path: Path, found: Explanation) -> None:
    from spidertensor.writing import replacing

    figure = found.plot().get_figure(root=True)
    assert figure is not None
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower(), dpi=150)
