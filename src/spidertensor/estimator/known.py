"""Read-only access to a fitted estimator: counts, scale, members, weights, factors."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator import fitted_file
from spidertensor.estimator.columns.labels import labels
from spidertensor.estimator.fitted import Fitted, units
from spidertensor.estimator.parameters import OF_LAYERS, is_whole, plain
from spidertensor.estimator.tally import LearningCurve
from spidertensor.estimator.threads import Shared, locked
from spidertensor.spider import posterior
from spidertensor.spider.committee import CommitteeCounts
from spidertensor.spider.posterior import Counts, Gaussian
from spidertensor.spider.spike_slab import inclusion


class MemberInfo(NamedTuple):
    """A member of the committee: its own parameters, its weight in predictions, and the log evidence it would
    have alone."""

    own: dict[str, Any]
    weight: float
    log_evidence: float


class Factors(NamedTuple):
    """Posterior of the factors of one mode: row i of mean and var belongs to ids[i]."""

    ids: list[Any]
    mean: NDArray[np.floating]
    var: NDArray[np.floating]


class Known(Shared):
    """Mixin of the estimators that reads what was learned."""

    _learned: Fitted | None = None

    @property
    @locked
    def n_nodes_(self) -> tuple[int, ...]:
        """Number of known nodes per mode."""
        return tuple(len(nodes) for nodes in self._fitted().nodes)

    @property
    @locked
    def n_evicted_(self) -> tuple[int, ...]:
        """Number of nodes per mode evicted to make room for new ids (`max_nodes`)."""
        return tuple(nodes.evicted for nodes in self._fitted().nodes)

    @property
    @locked
    def n_entries_(self) -> int:
        """Number of entries learned; for events, the number of events."""
        state = self._fitted().state
        return int(state.draws.events if state.draws else state.counts.entries)

    @property
    @locked
    def history_(self) -> dict[str, Any] | None:
        """How `fit` learned in several passes; None if it learned once.

        errors: after each pass, on entries held back and only predicted; chosen: the pass that was kept;
        judged: number of these entries; judge: "random" or "latest" ones; stopped: why there were no more
        passes; sites: how what entries said was stored; floors, by `spider fit` only: the errors of floors
        on the entries held back.
        """
        return copy.deepcopy(self._fitted().history)

    @property
    @locked
    def learning_curve_(self) -> LearningCurve:
        """Errors and coverage over the entries learned: a few thousand bytes, however many these are.

        Each entry was predicted just before it was learned; one with a forecast is scored by that. `fit` in
        several passes has its first pass here, and then the entries that it held back, predicted by the
        finished model; `history_` has the passes. What is shown does not depend on how a stream is cut into
        calls. A model from a file of version 0.2 or before has the entries learned since then.
        """
        return self._fitted().tally.learning_curve()

    @property
    @locked
    def n_rejected_(self) -> int:
        """Number of updates of single weights and factors, over all members, rejected to keep a variance
        positive."""
        return sum(int(member.counts.rejected) for member in self._fitted().state.members)

    @property
    @locked
    def n_refused_(self) -> int:
        """Number of entries not learned because their evidence is not finite."""
        return int(self._fitted().state.counts.refused)

    @property
    @locked
    def log_evidence_(self) -> float:
        """Sum over all entries of their log predictive density, in user units."""
        return self._log_evidence(self._fitted().state.counts)

    @property
    @locked
    def shift_(self) -> float:
        """Subtracted from a value before it is learned."""
        return units(self._fitted()).shift

    @property
    @locked
    def scale_(self) -> float:
        """Divides a value, after `shift_` is subtracted, before it is learned."""
        return units(self._fitted()).scale

    @property
    @locked
    def mode_names_(self) -> list[str]:
        """Column names of the first X learned; "0", "1", ... if it had none."""
        names = getattr(self, "feature_names_in_", None)
        return [str(mode) for mode in (range(len(self._fitted().nodes)) if names is None else names)]

    @property
    @locked
    def id_kinds_(self) -> list[tuple[str, ...]]:
        """Per mode, the sorted type names of its ids: bool, bytes, float, int, str, tuple."""
        return [nodes.kinds for nodes in self._fitted().nodes]

    @property
    @locked
    def settings_(self) -> dict[str, Any]:
        """The parameters in use since learning began, as stored in files: plain JSON.

        With a custom network, without those of the built-in one.
        """
        settings = copy.deepcopy(fitted_file.to_params(self._fitted()))
        left_out = OF_LAYERS if settings["network"] is not None else ()
        return {name: setting for name, setting in settings.items() if name not in left_out}

    @property
    @locked
    def members_(self) -> list[MemberInfo]:
        """The members of the committee."""
        fitted = self._fitted()
        members = zip(fitted.model.members, fitted.state.weights.tolist(), fitted.state.members, strict=True)
        return [
            MemberInfo(copy.deepcopy(member.own), weight, self._log_evidence(state.counts))
            for member, weight, state in members
        ]

    @property
    @locked
    def inclusion_(self) -> list[NDArray[np.float64]]:
        """`inclusion()` of the leading member."""
        return self.inclusion()

    @property
    @locked
    def weights_(self) -> list[Gaussian]:
        """`weights()` of the leading member."""
        return self.weights()

    @property
    @locked
    def factors_(self) -> list[Factors]:
        """`factors()` of the leading member."""
        return self.factors()

    @locked
    def inclusion(self, member: int | None = None) -> list[NDArray[np.float64]]:
        """Per layer, the probability that each weight is in the network (last column: biases).

        member: index in members_; None: the one with the largest weight
        """
        fitted, m = self._fitted(), self._member(member)
        return [inclusion(site, fitted.model.members[m].prior.rho0) for site in fitted.state.members[m].sites]

    @locked
    def weights(self, member: int | None = None) -> list[Gaussian]:
        """Per layer, mean and variance of its weights. member: see inclusion"""
        weights = self._fitted().state.members[self._member(member)].posterior.weights
        return [Gaussian(weight.mean.copy(), weight.var.copy()) for weight in weights]

    @locked
    def factors(self, member: int | None = None) -> list[Factors]:
        """Per mode, the ids of the nodes and the posterior of their factors: [bias | multilinear | rank].

        member: see inclusion
        """
        fitted = self._fitted()
        state = posterior.trim(fitted.state.members[self._member(member)])
        modes = zip(fitted.nodes, state.posterior.factors, strict=False)  # attribute tables follow
        return [Factors(nodes.ids, factor.mean.copy(), factor.var.copy()) for nodes, factor in modes]

    @locked
    def attribute_factors(self, member: int | None = None) -> dict[tuple[str, str], Factors]:
        """The posterior of the factors of attribute nodes, by mode and column: as `factors`, for attributes.

        The ids are values; for a number its knots and None for a missing one, for a time ("hour", 0) and so
        on. member: see inclusion
        """
        fitted, found = self._fitted(), {}
        if fitted.columns is None:
            return found
        state = posterior.trim(fitted.state.members[self._member(member)])
        ids, first = [nodes.ids for nodes in fitted.nodes], len(fitted.nodes)
        for table, column in enumerate(fitted.columns.columns):
            factor = state.posterior.factors[first + table]
            named = labels(column, ids)[: len(factor.mean)]
            key = fitted.columns.schema.names[column.mode], column.spec.name
            found[key] = Factors(named, factor.mean.copy(), factor.var.copy())
        return found

    def _fitted(self) -> Fitted:
        if self._learned is None:
            from sklearn.exceptions import NotFittedError  # imported here: slow

            raise NotFittedError(
                f"this {type(self).__name__} has learned nothing yet: call fit, partial_fit or learn first"
            )
        return self._learned

    def _log_evidence(self, counts: Counts | CommitteeCounts) -> float:
        learned = self.n_entries_ - int(counts.refused)
        return float(counts.log_evidence) - learned * math.log(self._fitted().scaling.scale)

    def _mode(self, mode: str | int) -> int:
        """Number of a mode given by column name or number."""
        names, mode = list(getattr(self, "feature_names_in_", ())), plain(mode)
        if mode in names:
            return names.index(mode)
        if is_whole(mode) and 0 <= int(mode) < len(self._fitted().nodes):
            return int(mode)
        shown = names or map(str, range(len(self._fitted().nodes)))
        raise ValueError(f"no mode {mode!r}: there are {', '.join(shown)}")

    def _member(self, member: int | None) -> int:
        fitted = self._fitted()
        if member is None:
            return fitted.leading
        n, number = len(fitted.state.members), plain(member)
        if not (is_whole(number) and 0 <= number < n):
            raise ValueError(f"no member {number!r}: the committee has {n}, numbered from 0")
        return number
