"""Mixin of the estimators that tells people what a model has learned: what is alike, and why a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from numpy.typing import NDArray

from spidertensor.estimator import one_entry
from spidertensor.estimator.explain import Explanation, explanation
from spidertensor.estimator.in_notebook import html
from spidertensor.estimator.known import Known
from spidertensor.estimator.node_table import node_table
from spidertensor.estimator.similar import Similar, similar_nodes
from spidertensor.estimator.threads import locked
from spidertensor.faults import EntryError


class Insight(Known):
    @locked
    def similar(self, mode: str | int, node: Any, n: int = 10) -> list[Similar]:
        """The n nodes of a mode that do to predictions most nearly what this one does, best first.

        Beside its bias: two films are alike if those who like the one like the other, however good both are.
        A node that was only described by attributes is compared by these (docs/similar-and-why.md).

        mode: column name or number
        node: the id of one that was learned or described; EntryError if it is unknown
        """
        fitted, number = self._fitted(), self._mode(mode)
        if not len(fitted.nodes[number]):
            raise ValueError(f"{mode!r} has no ids of its own: name a mode that has")
        row = int(fitted.nodes[number].find([node])[0])
        if row < 0:
            reason = f"{node!r:.80} was never learned in mode {self.mode_names_[number]!r:.80}"
            some = ", ".join(f"{each!r:.80}" for each in fitted.nodes[number].ids[:3])
            remedy = f"ask for an id that the model knows, such as {some}, or describe it"
            raise EntryError(reason, value=node, remedy=remedy)
        return similar_nodes(fitted, number, row, n)

    @locked
    def nodes(self, mode: str | int) -> dict[str, NDArray[Any]]:
        """What is known of each node of a mode, as columns: `pandas.DataFrame(model.nodes("movie"))`.

        id
        entries: in how many entries it was learned
        last:  the number of the last of them, counted from 1 to `n_entries_`; after `fit` with `time` in the
               order of time. NaN for a node that was only described
        bias:  what it adds to every prediction, beside its attributes; in units of f for labels and counts
        std:   how uncertain the model is of the bias
        known: share of the prior variance of the bias that entries have taken away: 0 nothing, 1 all
        noise: how many times as far as usual its values scatter, by the members that know (node_noise)

        In a model whose file did not count entries, `entries` of its nodes is NaN, and `last` until the node
        comes again.
        """
        fitted, number = self._fitted(), self._mode(mode)
        return node_table(fitted, number, fitted.nodes[number].ids)

    @locked
    def _repr_html_(self) -> str:
        return html(self) if self._learned is not None else f"<code>{escape(repr(self))}</code>"

    @locked
    def explain(self: Any, entry: Any) -> Explanation:
        """What level, biases, pairs of modes and network add to the prediction for one entry.

        entry: as for predict_one: a tuple of ids in the order of the modes, or a dict by name
        """
        index, bags = self._asked(one_entry.as_rows(entry))
        modes = self.mode_names_
        given = entry if isinstance(entry, Mapping) else dict(zip(modes, entry, strict=False))
        new = [" (never learned)" if number < 0 else "" for number in index[0]]
        ids = [f"{mode} {given[mode]}{new[k]}" if mode in given else mode for k, mode in enumerate(modes)]
        return explanation(self._fitted(), index, bags, modes, ids)
