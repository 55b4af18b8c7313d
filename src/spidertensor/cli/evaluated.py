"""Output of `spider evaluate`: a record of scores as tables."""

from __future__ import annotations

from typing import Any

from spidertensor.cli import output


def show(record: dict[str, Any]) -> None:
    metric = output.METRICS[record["metric"]]
    test = f", {record['test']} test" if record["test"] else ""
    order = f", ordered by {record['time']}" if record.get("time") else ""
    title = (
        f"{record['dataset']}, {record['protocol']} ({record['case']}){test}{order}: rank {record['rank']}, "
        f"batch size {record['batch_size']}, seed {record['seed']}"
    )
    columns = {"score": metric, "log_density": "log density"}
    names = {name: f"floor: {name}" for name in record["floors"]} | {"continuous": "as continuous values"}
    if record["accuracy"] is not None:
        columns = {"log_density": "log score", "accuracy": "accuracy", "score": f"{metric} of the mean"}
        names["mean"] = "floor: frequencies"
    scored = {record["method"]: record} | {names[name]: each for name, each in record["floors"].items()}
    rows = [[name, *(f"{each[key]:.4f}" for key in columns)] for name, each in scored.items()]
    output.print_table(title, ["", *columns.values()], rows)
    nodes = "".join(f", {n:,} of {mode}" for mode, n in record.get("nodes", {}).items())
    shown = {
        "bad rows, skipped": ("bad_rows", ",d"),
        "learning rate, tuned on this data set": ("learning_rate", "g"),
        "log loss": ("log_loss", ".4f"),
        "calibration error": ("calibration_error", ".4f"),
        "seconds": ("seconds", ".1f"),
        "entries per second": ("entries_per_second", ",.0f"),
        "rejected updates": ("rejected", ",d"),
    }
    pairs = [
        (label, format(record[key], how))
        for label, (key, how) in shown.items()
        if record.get(key) is not None and (key != "bad_rows" or record[key])
    ]
    if record.get("passes", 1) != 1:
        pairs.insert(0, ("learned", f"in passes: {record['passes']}"))
    if nodes:
        pairs.insert(0, ("entries and nodes", f"{record['entries']:,} entries{nodes}"))
    notes = [("note", note) for note in record["notes"]]
    output.print_pairs("", [*_coverages(record), *pairs, *notes])


def _coverages(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Coverage of plain and, if the method has them, calibrated intervals."""
    shown = {
        "coverage of 50 % intervals": ("{}_50",),
        "coverage of 90 % intervals": ("{}_90",),
        "the same in the worst windows": ("{}_90_lowest", "{}_90_highest"),
    }
    pairs = []
    for label, keys in shown.items():
        texts = []
        for kind, prefix in (("coverage", ""), ("calibrated", "calibrated ")):
            shares = [record[key.format(kind)] for key in keys]
            if None not in shares:
                texts.append(prefix + " to ".join(f"{share:.1%}" for share in shares))
        if texts:
            pairs.append((label, ", ".join(texts)))
    if record.get("quarters") is not None:
        shares = ", ".join(f"{share:.1%}" for share in record["quarters"])
        pairs.append(("the same by quarter of the prediction", shares))
    return pairs
