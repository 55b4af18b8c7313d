"""The rows of a model's nodes, spread over shards: row r of a mode is in shard r % n, at place r // n.

New nodes get consecutive rows, so shards grow alike. A round fetches the rows that its entries touch and
sends back what they have become; the shard alone knows what they were, and merges. One shard that lies around
the arrays of a state is how it works in one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.cluster.merge import Marks, marks, merge_log_noise, merge_rows
from spidertensor.spider import posterior
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Gaussian, Prior, State
from spidertensor.spider.robust import log_noise_widening, widening

Numbers = Sequence[NDArray[np.int64]]  # per mode, rows

AFRESH, KEEP_MEANS = "afresh", "keep means"  # what a change of the values asks for: follow.py


class Rows(NamedTuple):
    """Of one member, per mode: some of its nodes' factors and, if it has any, their log_noise."""

    factors: tuple[Gaussian, ...]
    log_noise: tuple[Gaussian, ...]


class OutOfStep(RuntimeError):
    """A round came to a shard that is not the next one. No round is lost or counted twice."""


class Shard:
    """The rows of one member in one shard.

    at: how many entries the rows have learned. A round goes from one such number to the next, and that is
        how a shard knows a round: the same one again changes nothing, any other is refused.
    """

    def __init__(
        self,
        network: Network,
        prior: Prior,
        seed: int,
        rows: Rows,
        *,
        number: int = 0,
        of: int = 1,
        at: int = 0,
    ) -> None:
        self.network, self.prior, self.seed = network, prior, seed
        self.rows, self.number, self.of, self.at = rows, number, of, at
        self._rejected = 0
        self._marks: list[Marks] = [marks(len(each.mean)) for each in rows.factors]

    def fetch(self, nodes: NDArray[np.int64], parts: Sequence[Numbers]) -> list[Rows]:
        """The rows that each worker asks for, in its order; copies. nodes: that there are, per mode."""
        self._grow(nodes)
        return [_taken(self.rows, [each // self.of for each in part]) for part in parts]

    def merge(
        self,
        start: int,
        end: int,
        parts: Sequence[Numbers],
        learned: Sequence[Rows],
        running: NDArray[np.float64],
        times: Sequence[Numbers] | None = None,
        memory: float | None = None,
        then: str | None = None,
    ) -> int:
        """The round of entries from `start` to `end`, once; how many elements were rejected.

        parts, learned: the rows that each worker asked for, and what it has made of them
        running: of log_noise, per mode, at the start of the round
        times, memory: how often each of the rows was in an entry, and the memory of a node; None: without
        then:    None, AFRESH or KEEP_MEANS, at the end of the round, for all rows
        """
        if self.at == end:
            return self._rejected
        if self.at != start:
            raise OutOfStep(f"a shard that has learned {self.at} entries got those from {start} to {end}")
        rejected = 0
        for mode in range(self.network.n_modes):
            where, used = [part[mode] // self.of for part in parts], self._marks[mode]
            left = left_noise = None
            if times is not None and memory is not None:
                left = [widening(memory) ** -each[mode].astype(float) for each in times]
                left_noise = [log_noise_widening(memory) ** -each[mode].astype(float) for each in times]
            after = list(zip(where, [each.factors[mode] for each in learned], strict=True))
            prior_var = posterior.factor_prior_var(self.network, self.prior, mode)
            rejected += merge_rows(
                self.rows.factors[mode], after, prior_var, used=used, left=left, modes=self.network.n_modes
            )
            if self.rows.log_noise:
                after = list(zip(where, [each.log_noise[mode] for each in learned], strict=True))
                prior = posterior.node_noise_var(self.network.n_modes)
                start_at = float(running[mode])
                rejected += merge_log_noise(
                    self.rows.log_noise[mode], after, prior, start_at, used, left_noise
                )
        if then is not None:
            self._restart(keep_means=then == KEEP_MEANS)
        self.at, self._rejected = end, rejected
        return rejected

    def all_rows(self, nodes: NDArray[np.int64], at: int) -> Rows:
        """Those of the nodes that there are, without spare ones. at: entries that they must have learned."""
        if self.at != at:
            raise OutOfStep(f"a shard has learned {self.at} entries, the rest of the model {at}")
        self._grow(nodes)
        here = [np.arange(-(-(int(n) - self.number) // self.of)) for n in nodes]
        return _taken(self.rows, here)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for modes in self.rows for part in modes for array in part)

    def _grow(self, nodes: NDArray[np.int64]) -> None:
        wanted = np.array([max(-(-(int(n) - self.number) // self.of), 0) for n in nodes])
        if all(n <= len(factor.mean) for n, factor in zip(wanted, self.rows.factors, strict=True)):
            return
        factors = posterior.with_room(self.rows.factors, wanted, self._start)
        log_noise = self.rows.log_noise
        if log_noise:
            log_noise = posterior.with_room(log_noise, wanted, self._start_log_noise)
        self.rows = Rows(factors, log_noise)
        self._marks = [marks(len(each.mean)) for each in factors]

    def _start(self, mode: int, first: int, last: int) -> Gaussian:
        """How places first to last of this shard begin: as the rows of these nodes do in any model."""
        step, parts = 2**16 // self.of + 1, []
        for begin in range(first, last, step):  # all shards' rows are drawn, and one's kept: not all at once
            end = min(begin + step, last)
            low, high = self.number + begin * self.of, self.number + (end - 1) * self.of + 1
            every = posterior.start_rows(self.network, self.prior, self.seed, mode, low, high)
            parts.append([part[:: self.of] for part in every])
        return Gaussian(*(np.concatenate(each) for each in zip(*parts, strict=True)))

    def _start_log_noise(self, mode: int, first: int, last: int) -> Gaussian:
        return posterior.start_log_noise(self.network, mode, first, last)

    def _restart(self, *, keep_means: bool) -> None:
        for mode in range(self.network.n_modes):
            n = len(self.rows.factors[mode].mean)
            pairs: list[Any] = [(self.rows.factors[mode], self._start(mode, 0, n))] if n else []
            if self.rows.log_noise:
                mean, var = self._start_log_noise(mode, 0, n)
                self.rows.log_noise[mode].mean[:], self.rows.log_noise[mode].var[:] = mean, var
            for now, fresh in pairs:
                now.var[:] = fresh.var
                if not keep_means:
                    now.mean[:] = fresh.mean


def around(state: State, network: Network, prior: Prior) -> Shard:
    """One shard that has the rows of a state, and changes them in place."""
    rows = Rows(state.posterior.factors, state.posterior.log_noise)
    return Shard(network, prior, int(state.seed), rows, at=int(state.counts.entries))


def cut(state: State, number: int, of: int) -> Rows:
    """The rows of a state that belong to one of so many shards; copies."""
    state = posterior.trim(state)
    return Rows(
        *(
            tuple(Gaussian(*(np.ascontiguousarray(part[number::of]) for part in each)) for each in modes)
            for modes in (state.posterior.factors, state.posterior.log_noise)
        )
    )


def joined(state: State, shards: Sequence[Rows]) -> State:
    """The inverse: the state with the rows of all shards."""
    of = len(shards)

    def interleaved(parts: Sequence[NDArray[np.floating]]) -> NDArray[np.floating]:
        every = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
        for number, part in enumerate(parts):
            every[number::of] = part
        return every

    factors, log_noise = (
        tuple(Gaussian(*map(interleaved, zip(*mode, strict=True))) for mode in zip(*modes, strict=True))
        for modes in zip(*shards, strict=True)
    )
    return state._replace(posterior=state.posterior._replace(factors=factors, log_noise=log_noise))


def _taken(rows: Rows, numbers: Numbers) -> Rows:
    return Rows(
        *(
            tuple(
                Gaussian(mean.take(n, axis=0), var.take(n, axis=0))
                for (mean, var), n in zip(modes, numbers, strict=False)
            )
            for modes in rows
        )
    )
