"""The cost of learning an entry, in microseconds: from timed runs if there are any, else from all others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spidertensor_study.report import runs as r
from spidertensor_study.report.runs import Cell, Run


def microseconds(run: Run) -> float:
    """Microseconds of learning per entry."""
    score = next(iter(run.scores.values()))
    return 1e6 * score["seconds"] / score["n_entries"]


def timed(found: Sequence[Run]) -> list[Run]:
    return [run for run in found if run.experiment == "time" and run.scores]


def cost(found: Sequence[Run], name: str, data: str, rank: int, batch_size: int) -> Cell | None:
    """Microseconds per entry at this rank and batch size; at any batch size if the method does not see it."""
    return r.average(map(microseconds, r.at(found, name, data, rank, batch_size)))


def three_digits(number: float) -> str:
    return f"{number:.3g}" if number < 100 else f"{number:,.0f}"


COSTS = (
    f"Costs are seconds spent in learning, at rank {r.RANK} and batch size {r.BATCH_SIZE} where it was run "
    "there, from the cheapest data set to the dearest."
)


def summary(found: Sequence[Run], names: Iterable[str]) -> str:
    """The cost of an entry with each method, from its cheapest data set to its most expensive, as text."""
    alone, together = timed(found), [run for run in found if run.scores and run.experiment != "time"]
    parts = []
    for name in dict.fromkeys(names):
        measured = _by_data(alone, name)
        others = _by_data(together, name)
        if measured:
            parts.append(f"{name} {_range(measured)}")
        elif others:
            where = sorted({run.machine for run in together if run.name == name and run.machine})
            beside = f"not timed alone, {' or '.join(where)}" if where else "not timed alone"
            parts.append(f"{name} {_range(others)} ({beside})")
        else:
            parts.append(f"{name} not timed")
    return f"µs per entry: {'; '.join(parts)}" if parts else ""


def _by_data(found: Sequence[Run], name: str) -> list[float]:
    """The cost on each data set at the usual rank and batch size, or, if never run there, of every run."""
    here = [run for run in found if run.name == name]
    cells = [cost(here, name, data, r.RANK, r.BATCH_SIZE) for data in r.data_sets(here)]
    return [cell.mean for cell in cells if cell] or list(map(microseconds, here))


def _range(costs: Sequence[float]) -> str:
    low, high = three_digits(min(costs)), three_digits(max(costs))
    return low if low == high else f"{low} to {high}"
