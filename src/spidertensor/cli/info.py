"""`spider info`: show what a model has learned."""

from __future__ import annotations

from typing import Any

from spidertensor.cli import event_options, files, options, output


def info(
    model: options.ModelFile, network: options.NetworkName = None, as_json: options.AsJson = False
) -> None:
    """Show what a model has learned, and where it stopped.

    Committee members are shown with their own settings, their weights, and the log evidence per entry that
    each would have alone; layers are those of the leading member. --network checks whether a network fits.

    \b
    spider info ratings.spider
    spider info ratings.spider --json
    """
    from spidertensor.estimator import look
    from spidertensor.learner.attributes import modes_with_ids
    from spidertensor.learner.labels import own_labels

    estimator = look(model) if network is None else files.load_model(model, network)
    entries = estimator.n_entries_
    with_ids = modes_with_ids(estimator, len(estimator.mode_names_))
    record: dict[str, Any] = {
        "model": str(model),
        "kind": type(estimator).__name__,
        "modes": {estimator.mode_names_[mode]: estimator.n_nodes_[mode] for mode in with_ids},
        "attributes": _attributes(estimator),
        "entries": entries,
        "labels": None if (classes := own_labels(estimator)) is None else list(classes),
        "noise": getattr(estimator, "noise_", None),
        "log_evidence": estimator.log_evidence_ / max(entries, 1),
        **output.counts_of(estimator),
        "history": estimator.history_,
        "inclusion": [
            float((layer > 0.5).mean())
            for layer in estimator.inclusion_
            if layer.size > 1  # else there is no network: the level alone
        ],
        "settings": estimator.settings_,
        "members": output.members_of(estimator),
        "position": estimator.position_,
    }
    if as_json:
        output.print_json(record)
        return
    noise = record["noise"]
    settings = event_options.with_mode_names(record["settings"], estimator.mode_names_)
    layers = enumerate(record["inclusion"], 1)
    output.print_pairs(
        f"{model}: {record['kind']}",
        [
            ("entries", f"{entries:,}"),
            *((f"nodes of {name}", f"{nodes:,}") for name, nodes in record["modes"].items()),
            *([] if classes is None else [("labels", f"{classes[0]!r} and {classes[1]!r} (positive)")]),
            *([] if noise is None else [estimator.likelihood_.noise_in_words(noise)]),
            ("evidence", output.evidence(record["log_evidence"], estimator)),
            *output.pairs_of_counts(record),
            *output.pairs_of_history(
                record["history"], "rmse" if estimator.likelihood_.metric == "rmse" else "log_loss"
            ),
            *((f"layer {layer}", f"{share:.1%} of weights in use") for layer, share in layers),
            ("settings", output.settings_text(settings)),
            *((f"bins of {mode}", rule) for mode, rule in _bins(estimator)),
            ("position", _place(record["position"])),
        ],
    )
    if record["attributes"]:
        output.say("")
        _print_attributes(record["attributes"])
    if len(record["members"]) > 1:
        output.say("")
        _print_members(record["members"])


def _attributes(estimator: Any) -> list[dict[str, Any]]:
    """The attribute columns: values are its nodes in the model, described the nodes that have one."""
    columns = estimator._learned.columns
    if columns is None:
        return []
    return [
        {
            "mode": columns.schema.names[column.mode],
            "column": column.spec.name,
            "kind": column.spec.kind,
            "values": column.n_rows,
            "described": column.n_described,
            "evicted": column.n_evicted,
        }
        for column in columns.columns
    ]


def _print_attributes(attributes: list[dict[str, Any]]) -> None:
    rows = [
        [
            each["column"],
            each["mode"],
            each["kind"],
            f"{each['values']:,}",
            "" if each["described"] is None else f"{each['described']:,}",
        ]
        for each in attributes
    ]
    output.print_table("attributes", ["column", "mode", "kind", "values", "nodes that have one"], rows)


def _print_members(members: list[dict[str, Any]]) -> None:
    rows = [
        [
            output.settings_text(member["own"]) or "none: the settings above",
            f"{member['weight']:.3f}",
            f"{member['log_evidence']:.4f}",
            "leads" if member["leading"] else "",
        ]
        for member in members
    ]
    output.print_table("members", ["own settings", "weight", "evidence", ""], rows)


def _bins(estimator: Any) -> list[tuple[str, str]]:
    from spidertensor.learner.position import bins

    by_mode = zip(estimator.mode_names_, bins(estimator), strict=True)
    return [(mode, f"{each.rule}, {len(each.edges or ())} edges") for mode, each in by_mode if each]


def _place(position: Any) -> str:
    """Where a model stopped, in words; a position that a user saved with it, as it is."""
    found = []
    match position:
        case None:
            return "none"
        case {"source": str(source), "row": int(row), "bad": int(bad), "stream": dict(where)}:
            at = ", ".join(f"{name} {each}" for name, each in where.items() if name != "messages")
            found = [f"message {row:,} of {source} ({at}), with {output.counted(bad, 'bad message')}"]
        case {"source": str(source), "row": int(row), "bad": int(bad)}:
            found = [f"row {row:,} of {source}, with {output.counted(bad, 'bad row')}"]
    match position:
        case {"service": {"sequence": int(sequence)}}:
            found.append(f"request {sequence:,} to spider serve")
    return "; then ".join(found) or str(position)
