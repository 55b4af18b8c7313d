"""`spider recommend`: the best nodes of a mode."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from spidertensor.cli import files, options, output
from spidertensor.cli.errors import CommandError
from spidertensor.cli.notes import Notes


class Explore(StrEnum):
    MEAN = "mean"
    UCB = "ucb"
    THOMPSON = "thompson"


def recommend(
    model: options.ModelFile,
    given: Annotated[
        list[str],
        typer.Option(
            metavar="MODE=ID",
            help="The id of a mode: user=42. Repeat for every mode but one.",
            default_factory=list,  # a model of one mode has no other
            show_default=False,
        ),
    ],
    over: Annotated[str, typer.Option(metavar="MODE", help="The mode to rank.")],
    n: Annotated[int, typer.Option("-n", metavar="N", min=1, help="Number of nodes to show.")] = 10,
    explore: Annotated[
        Explore,
        typer.Option(
            metavar="mean|ucb|thompson",
            help="Rank by the mean, the mean plus two std, or one draw from the posterior.",
        ),
    ] = Explore.MEAN,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed for Thompson sampling.")] = None,
    interval: options.Interval = None,
    network: options.NetworkName = None,
    as_json: options.AsJson = False,
) -> None:
    """Rank the nodes of one mode, best first, with uncertainty.

    std is that of the expected value; the std of spider predict also has the noise of an observation. For
    binary values the first column is a probability, and std is that of the f behind it. --interval adds low
    and high of an observation, as in spider predict.

    \b
    spider recommend ratings.spider --given user=42 --over movie -n 5
    spider recommend ratings.spider --given user=42 --over movie --interval 0.9
    spider recommend log.spider --given user=anna --given hour=13 --over file
    """
    from spidertensor.faults import SpiderWarning

    estimator = files.load_model(model, network)
    options.check_interval(interval, model, estimator.likelihood)
    names = estimator.mode_names_
    fixed = _given(given, over, names, model)
    ids: dict[str | int, Any] = {
        names.index(name): files.parse_id(estimator, names.index(name), text) for name, text in fixed.items()
    }
    how = {"n": n, "explore": explore.value, "seed": seed, "coverage": interval}
    notes = Notes()
    with notes.of_warnings():
        ranked = estimator.recommend(ids, names.index(over), **how)
    if not ranked:
        raise CommandError(f"{model} knows no {over}: all were forgotten")
    entry = ids | {names.index(over): ranked[0].id}
    seen = estimator.seen([[entry[mode] for mode in range(len(names))]])[0]
    for mode, name in enumerate(names):
        if not seen[mode]:
            reason = f"{name}={output.shown(entry[mode])} was never seen: predicted from the prior"
            notes.tell(SpiderWarning(reason, kind=f"unseen {name}"))
    expected, spread = estimator.likelihood.mean_name, estimator.likelihood.std_name
    columns = ["id", expected, spread, *([] if interval is None else ["low", "high"])]
    records = [dict(zip(columns, each, strict=False)) for each in ranked]
    if as_json:
        output.print_json(
            {"model": str(model), "given": fixed, "over": over, "nodes": records, "notes": notes.records}
        )
        return
    rows = [[output.shown(each["id"]), *(f"{each[name]:.4g}" for name in columns[1:])] for each in records]
    ranked_by = {"mean": expected, "ucb": "the mean of f plus two std", "thompson": "one draw of f"}
    title = "; ".join([*filter(None, [", ".join(given)]), f"ranked by {ranked_by[explore.value]}"])
    output.print_table(title, [over, *(name.replace("_", " ") for name in columns[1:])], rows)


def _given(texts: list[str], over: str, names: list[str], model: Path) -> dict[str, str]:
    """The ids of --given by their modes, which must be all modes but `over`."""
    fixed: dict[str, str] = {}
    for text in texts:
        name, equals, raw = text.partition("=")
        if not equals:
            raise CommandError(f"--given takes mode=id, not {text!r}")
        fixed[name] = raw
    if unknown := [name for name in (*fixed, over) if name not in names]:
        raise CommandError(f"{model} has no mode {unknown[0]!r}, only: {', '.join(names)}")
    if missing := [name for name in names if name != over and name not in fixed]:
        raise CommandError(f"--given is missing for: {', '.join(missing)}")
    if over in fixed:
        raise CommandError(f"{over} cannot be both given and ranked")
    return fixed
