"""`spider evaluate` on events: rank nodes, and compare with the floors: popularity, item cosine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from spidertensor.cli import output
from spidertensor.cli.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spidertensor.evaluation.dataset import Dataset
    from spidertensor.evaluation.methods import Entry

PROTOCOLS = ("last-out", "prequential")
HEADER = {"HR@10": "hr_10", "NDCG@10": "ndcg_10", "recall@20": "recall_20", "MRR": "mrr"}
LISTS = {"full": "all nodes", "sampled": "99 sampled others"}


def evaluate_events(
    name: str,
    load: Callable[[], tuple[Dataset, dict[str, Any]]],
    methods: Mapping[str, Entry],
    method: str,
    protocol: str | None,
    settings: dict[str, Any],
    seed: int,
    describe: Callable[[Any], Any] = lambda estimator: None,
) -> dict[str, Any]:
    """Evaluate a method on events and return its record.

    load:     returns the data, and facts about its file for the record
    settings: flat parameters of the estimator; without passes, these are chosen here
    describe: sets attributes of an estimator
    """
    protocol = protocol or PROTOCOLS[0]
    if protocol not in PROTOCOLS:
        choices = " or ".join(PROTOCOLS)
        raise CommandError(f"{name} has events and no values; --protocol takes {choices}")
    if not methods[method].events:
        able = ", ".join(each for each, entry in methods.items() if entry.events)
        raise CommandError(f"{method} cannot learn from events alone; choose one of {able}")
    passes = _passes(settings.get("passes"), method, protocol)
    data, file_facts = load()
    if protocol == "prequential" and data.time_order is None:
        raise CommandError(f"the events of {name} have no times, so it has no prequential ranks")
    settings = settings | {"passes": passes}
    built = _method(data, methods[method], settings, seed, describe)
    ranked = {}
    for each, how in {method: built, **_floors(data, protocol)}.items():
        with output.working(f"{each} learns and ranks {name}"):
            ranked[each] = _rows(data, how, protocol, seed, settings["batch_size"])
    full = ranked[method]["full"]
    if not full["n_scored"]:
        raise CommandError(
            f"{name}: no event can be ranked: a {data.modes[0]} needs at least two events, "
            f"and a {data.events_over} without an event"
        )
    about = ("n_entries", "n_scored", "skipped", "seconds", "entries_per_second", "ranking_seconds")
    return {
        "dataset": name,
        **file_facts,
        "method": method,
        "engine": settings.get("engine"),
        **settings,
        "seed": seed,
        "protocol": protocol,
        "over": data.events_over,
        **{key: full[key] for key in (*about, "rejected", "members")},
        "ranks": {each: {test: _scores(row) for test, row in rows.items()} for each, rows in ranked.items()},
        "notes": [*_notes(data, protocol), *_behind(method, ranked)],
    }


def _passes(asked: int | str | None, method: str, protocol: str) -> int | str:
    """How often events are learned: as `spider fit` does, unless the method or the protocol forbids it."""
    if method == "spider" and protocol == "last-out":
        return "auto" if asked is None else asked
    if asked not in (None, 1):
        why = f"{method} learns events once" if method != "spider" else f"--protocol {protocol} is one pass"
        raise CommandError(f"--passes: {why}")
    return 1


def _method(
    data: Any, entry: Entry, settings: dict[str, Any], seed: int, describe: Callable[[Any], Any]
) -> Any:
    """The method for these settings."""
    from spidertensor.estimator.event_rule import FIT_NEGATIVES
    from spidertensor.evaluation.fitted_events import fit_all, in_passes
    from spidertensor.evaluation.with_attributes import of_events

    own = dict(settings)
    learn_all, in_time = None, data.time_order is not None
    if settings["passes"] != 1:
        own["negatives"], learn_all = FIT_NEGATIVES, partial(fit_all, in_time=in_time)
    try:
        if data.schema is not None and data.events_over is not None:
            return of_events(data.table, data.schema, data.events_over, describe, own, learn_all)
        if learn_all is not None:
            return in_passes(data.modes.index(data.events_over), own, in_time=in_time)
        return entry.for_run(data, settings | {"seed": seed})[0]
    except ModuleNotFoundError as error:
        raise CommandError(f"{entry.name} needs {error.name}: pip install 'spidertensor[jax]'") from None
    except ValueError as error:
        raise CommandError(str(error)) from None


def _floors(data: Any, protocol: str) -> dict[str, Any]:
    """Methods that a model should rank better than."""
    from spidertensor.evaluation.item_cosine import item_cosine
    from spidertensor.evaluation.popularity import popularity
    from spidertensor.evaluation.with_attributes import of_ids

    n_modes = len(data.shape)
    floors = {"popularity": popularity(n_modes)}
    if protocol == "last-out" and n_modes > 1:  # the other needs all events at once
        over = data.modes.index(data.events_over)
        floors["item cosine"] = item_cosine(n_modes, 1 if over == 0 else 0, over)
    return floors if data.schema is None else {name: of_ids(floor) for name, floor in floors.items()}


def _rows(data: Any, method: Any, protocol: str, seed: int, batch_size: int) -> dict[str, Any]:
    import numpy as np

    from spidertensor.evaluation.dataset import take
    from spidertensor.evaluation.last_out import last_out, prequential_ranks

    over = data.modes.index(data.events_over)
    about = {"over": over, "seed": seed, "n_modes": len(data.modes)}
    if data.time_order is None:  # no times: hold out a random event of each user
        events = take(data.train, np.random.default_rng(seed).permutation(len(data.train.value)))
    else:
        events = data.in_time_order()
    if protocol == "prequential":
        rows = prequential_ranks(method, events, **about)
    else:
        rows = last_out(method, events, n_nodes=data.shape[over], batch_size=batch_size, **about)
    return {row["test"]: row for row in rows}


def _scores(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in (*HEADER.values(), "coverage_10")}


def _notes(data: Any, protocol: str) -> list[str]:
    from spidertensor.evaluation.last_out import EVERY_EVENTS

    notes = []
    if protocol == "prequential":
        notes.append(f"after the first tenth, every {EVERY_EVENTS}th event is ranked before it is learned")
    else:
        notes.append("sampled ranks look too good; compare methods by the full ranking")
    if data.time_order is None:
        user = data.modes[0]
        notes.append(f"the events have no times: one random event of each {user} is held out")
    return notes


def _behind(method: str, ranked: Mapping[str, dict[str, Any]]) -> list[str]:
    """A note for each floor that ranks better. ranked: rows by method and list"""
    notes, full = [], ranked[method]["full"]
    for floor in ranked.keys() - {method}:
        ahead = [name for name, key in HEADER.items() if ranked[floor]["full"][key] > full[key]]
        if ahead:
            notes.append(f"{floor} ranks these events better than {method}, by {' and '.join(ahead)}")
    return sorted(notes)


def show(record: dict[str, Any]) -> None:
    title = (
        f"{record['dataset']}, {record['protocol']}, ranks of {record['over']}: rank {record['rank']}, "
        f"batch size {record['batch_size']}, seed {record['seed']}"
    )
    rows = []
    for test, among in LISTS.items():
        for name, tests in record["ranks"].items():
            if test in tests:
                scores = [f"{tests[test][key]:.4f}" for key in HEADER.values()]
                share = tests[test]["coverage_10"]
                rows.append([f"{name}, {among}", *scores, "" if share is None else f"{share:.1%}"])
    output.print_table(title, ["", *HEADER, "coverage"], rows)
    times = "once" if record["passes"] == 1 else f"in passes: {record['passes']}"
    pairs = [
        ("events learned, and ranked", f"{record['n_entries']:,}, {record['n_scored']:,}"),
        ("learned", times),
        ("seconds to learn, and to rank", f"{record['seconds']:.1f}, {record['ranking_seconds']:.1f}"),
        ("events per second", f"{record['entries_per_second']:,.0f}"),
    ]
    if record.get("bad_rows"):
        pairs.append(("bad rows, skipped", f"{record['bad_rows']:,}"))
    output.print_pairs("", [*pairs, *(("note", note) for note in record["notes"])])
