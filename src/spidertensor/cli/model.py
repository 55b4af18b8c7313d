"""`spider info` and `spider recommend`: what a model knows."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from spidertensor.cli import common
from spidertensor.cli.common import CommandError
from spidertensor.cli.predict import ModelFile


class Explore(StrEnum):
    MEAN = "mean"
    UCB = "ucb"
    THOMPSON = "thompson"


def recommend(
    model: ModelFile,
    given: Annotated[
        list[str],
        typer.Option(metavar="MODE=ID", help="The id of a mode, user=42; once for each mode but one."),
    ],
    over: Annotated[str, typer.Option(metavar="MODE", help="The mode whose nodes are ranked.")],
    n: Annotated[int, typer.Option("-n", metavar="N", min=1, help="How many.")] = 10,
    explore: Annotated[
        Explore,
        typer.Option(
            metavar="mean|ucb|thompson",
            help="Rank by the mean, the mean plus two std, or one draw from the posterior.",
        ),
    ] = Explore.MEAN,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Of the draw of thompson.")] = None,
    network: common.NetworkName = None,
    as_json: common.AsJson = False,
) -> None:
    """Rank the nodes of one mode by what the model expects of them, highest first, with its uncertainty.

    std is that of the expected value alone; the std of spider predict also has the noise of one observation.
    For binary values the first column is a probability, and std that of the f behind it.

    \b
    spider recommend ratings.spider --given user=42 --over movie -n 5
    spider recommend log.spider --given user=anna --given hour=13 --over file --explore thompson --json
    """
    estimator: Any = common.load_model(model, network)
    names = common.mode_names(estimator)
    fixed: dict[str, str] = {}
    for text in given:
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
    modes = {names.index(name): raw for name, raw in fixed.items()}
    ids = {mode: estimator.parse_id(mode, raw) for mode, raw in modes.items()}
    ranked = estimator.recommend(ids, names.index(over), n=n, explore=explore.value, seed=seed)
    for mode, raw in ids.items():
        if estimator._fitted().nodes[mode].find([raw])[0] < 0:
            common.note(f"note: {names[mode]}={raw} was never seen, and is answered from the prior")
    expected, spread = ("probability", "std_of_f") if hasattr(estimator, "predict_proba") else ("mean", "std")
    records = [{"id": raw, expected: float(mean), spread: float(std)} for raw, mean, std in ranked]
    if as_json:
        common.print_json({"model": str(model), "given": fixed, "over": over, "nodes": records})
        return
    rows = [[str(each["id"]), f"{each[expected]:.4g}", f"{each[spread]:.4g}"] for each in records]
    ranked_by = {"mean": expected, "ucb": "the mean of f plus two std", "thompson": "one draw of f"}
    title = f"{', '.join(given)}; ranked by {ranked_by[explore.value]}"
    common.print_table(title, [over, expected, spread.replace("_", " ")], rows)


def info(model: ModelFile, network: common.NetworkName = None, as_json: common.AsJson = False) -> None:
    """Show what a model has learned: modes, nodes, noise, evidence, settings, and where it stopped.

    A network of one's own is shown by its name and shapes; --network is needed only to see whether it fits.

    \b
    spider info ratings.spider
    spider info ratings.spider --json
    """
    from spidertensor.estimator import look
    from spidertensor.estimator.fitted import to_params
    from spidertensor.estimator.parameters import OF_LAYERS

    estimator: Any = look(model) if network is None else common.load_model(model, network)
    entries, settings = estimator.n_entries_, to_params(estimator._fitted())
    if settings["network"] is not None:
        settings = {name: setting for name, setting in settings.items() if name not in OF_LAYERS}
    record = {
        "model": str(model),
        "kind": type(estimator).__name__,
        "modes": dict(zip(common.mode_names(estimator), estimator.n_nodes_, strict=True)),
        "entries": entries,
        "noise": getattr(estimator, "noise_", None),
        "log_evidence": estimator.log_evidence_ / max(entries, 1),
        "rejected": estimator.n_rejected_,
        "inclusion": [float((layer > 0.5).mean()) for layer in estimator.inclusion_],
        "settings": settings,
        "position": estimator.position_,
    }
    if as_json:
        common.print_json(record)
        return
    noise = record["noise"]
    layers = enumerate(record["inclusion"], 1)
    common.print_pairs(
        f"{model}: {record['kind']}",
        [
            ("entries", f"{entries:,}"),
            *((f"nodes of {name}", f"{nodes:,}") for name, nodes in record["modes"].items()),
            *([] if noise is None else [("noise", f"standard deviation {noise**0.5:.4g}")]),
            ("evidence", f"{record['log_evidence']:.4f} per entry"),
            ("rejected", f"{record['rejected']:,} updates of single elements"),
            *((f"layer {layer}", f"{share:.1%} of the weights are in use") for layer, share in layers),
            ("settings", ", ".join(f"{name}={setting}" for name, setting in record["settings"].items())),
            ("position", _place(record["position"])),
        ],
    )


def _place(position: Any) -> str:
    if isinstance(position, dict) and {"source", "row", "bad"} <= position.keys():
        return f"row {position['row']:,} of {position['source']}, {position['bad']:,} of them bad"
    return "none" if position is None else str(position)
