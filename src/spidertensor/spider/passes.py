"""Learn a history as often as it takes, and count nothing twice: mathematics.md section 20.

A `History` has entries in parts that are always learned together (parts.py). A `Visitor` brings one model
through the parts (visitor.py). `Passes` does so with all members of a committee.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Update, joined
from spidertensor.spider.committee import cores
from spidertensor.spider.crew import in_threads
from spidertensor.spider.event_passes import EventHistory, EventVisitor
from spidertensor.spider.parts import History, Part
from spidertensor.spider.posterior import State
from spidertensor.spider.site_plan import MOST_BYTES, NEVER, planned
from spidertensor.spider.visitor import MemberModel, Visitor

BLOCK_PARTS = 32  # visited between two looks at the clock
BLOCK_ENTRIES = 2**16  # of these parts at most, or one part


class Passes:
    """The members of a committee on their way through a history, all at the same part.

    folder: where files may lie
    """

    def __init__(
        self, models: Sequence[MemberModel], history: History, seed: int, folder: str | None = None
    ) -> None:
        self._models, self._history, self._seed = models, history, seed
        often = [model for model in models if not model.once]
        elements = np.sum([[0] * len(history.counts), *(model.elements for model in often)], axis=0).tolist()
        weights = sum(model.network.n_weights for model in often)
        self.plan = planned(history.counts, elements, weights, history.n_entries, history.part_entries)
        self._site_bytes = self.plan.n_bytes(elements, weights)
        history.cut(self.plan.part_entries)
        visitor = EventVisitor if isinstance(history, EventHistory) else Visitor
        self._visitors = [
            None if model.once else visitor(model, history, self.plan, folder) for model in models
        ]
        self.done = 0

    def how(self) -> str:
        """What becomes of what entries said, in words."""
        plan, place = self.plan, "memory"
        if any(visitor is not None and visitor.sites.in_file for visitor in self._visitors):
            place = "a file"
        words = f"{plan.n_parts:,} parts, {self._site_bytes / 2**20:,.0f} MiB in {place}"
        if plan.often == NEVER:
            return words
        who = "nodes" if plan.all_by_share else f"nodes with {plan.often:,} entries or more"
        return f"{words}; {who} have none, to keep them below {MOST_BYTES / 2**30:g} GiB"

    def one_more(
        self, states: Sequence[State]
    ) -> Iterator[tuple[list[State], list[Update], NDArray[np.float64]]]:
        """One more pass: the members after each block of parts, what they reported about its entries, and the
        values of these.

        The first pass has the order of the history; later ones visit its parts in random order.
        """
        states, first = list(states), self.done == 0
        order = np.arange(self._history.n_parts)
        if not first:
            np.random.default_rng([self._seed, self.done]).shuffle(order)
        known, counts = [state.counts.nodes for state in states], [_copied(state.counts) for state in states]
        if first:
            self._entries = [int(state.counts.entries) for state in states]
            # a model that has learned nothing knows no node, although they already have their rows
            self._known = [n if entries else 0 * n for n, entries in zip(known, self._entries, strict=True)]
        else:
            for state, entries in zip(states, self._entries, strict=True):
                state.counts.entries[()] = entries  # refinements come where they came in the first pass

        def work(m: int, block: list[Part]) -> tuple[State, list[Update]]:
            updates, state, visitor = [], states[m], self._visitors[m]
            for part in block:
                if visitor is not None:
                    state, update = visitor.visit(state, part, again=not first)
                elif first:
                    state, update = self._models[m].method.update(state, part.batch)
                else:
                    break
                updates.append(update)
            return state, updates

        entries = self._history.part_entries * self._history.made_entries
        size = max(1, min(BLOCK_PARTS, BLOCK_ENTRIES // entries))
        for numbers in np.split(order, range(size, len(order), size)):
            block = [self._history.part(int(number), self.done) for number in numbers]
            results = in_threads(partial(work, block=block), len(states), min(cores(), len(states)))
            states = [state for state, _ in results]
            values = np.concatenate([part.batch.value for part in block])
            yield states, [joined(updates) for _, updates in results if updates], values
        for state, before, visitor, had in zip(states, counts, self._visitors, self._known, strict=True):
            if not first:
                for now, old in zip(state.counts, before, strict=True):
                    now[...] = old  # each entry counts once
            elif visitor is not None:
                visitor.end_first_pass(state, had)
        self.done += 1


def _copied(counts: Any) -> list[NDArray[Any]]:
    return [part.copy() for part in counts]
