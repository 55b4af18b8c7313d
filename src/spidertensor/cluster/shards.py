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

from spidertensor.cluster.merge_rows import marks, merge_log_noise, merge_rows
from spidertensor.spider import posterior
from spidertensor.spider.committee import in_threads
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Gaussian, Prior, State
from spidertensor.spider.robust import log_noise_widening, widening

Numbers = Sequence[NDArray[np.int64]]  # per mode, rows

AFRESH, KEEP_MEANS = "afresh", "keep means"  # what a change of the values asks for: follow.py


class Rows(NamedTuple):
    """Of one member, per mode: some of its nodes' factors and, if it has any, their log_noise."""

    factors: tuple[Gaussian, ...]
    log_noise: tuple[Gaussian, ...]


class Touched(NamedTuple):
    """What one worker has made of rows of a shard in a round."""

    rows: Numbers  # per mode, each once
    times: Numbers  # entries of the worker that each of them was in
    learned: Rows


class OutOfStep(RuntimeError):
    """A round came to a shard that is not the next one. No round is lost or counted twice."""


class Shard:
    """The rows of one member in one shard.

    at: how many entries the rows have learned. A round goes from one such number to the next, and that is
        how a shard knows a round: the same one again changes nothing, any other is refused.
    threads: that merge, at most one for each mode
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
        threads: int = 1,
    ) -> None:
        self.network, self.prior, self.seed = network, prior, seed
        self.rows, self.number, self.of, self.at = rows, number, of, at
        self.threads = threads
        self._rejected = 0
        self._marks = [marks(len(each.mean)) for each in rows.factors]

    def fetch(self, nodes: NDArray[np.int64], rows: Numbers, at: int) -> Rows:
        """Some rows, in this order; copies.

        nodes: that there are, per mode
        at:    entries that the rows must have learned: a part that is repeated too late finds other rows
        """
        self._check(at)
        self.grow(nodes)
        return _taken(self.rows, [each // self.of for each in rows] if self.of > 1 else rows)

    def merge(
        self,
        touched: Sequence[Touched],
        start: int,
        end: int,
        running: NDArray[np.float64],
        memory: float | None = None,
        then: str | None = None,
    ) -> int:
        """The round of entries from `start` to `end`, once; how many elements were rejected.

        touched: by each worker
        running: of log_noise, per mode, at the start of the round
        memory:  of a node; None: without
        then:    None, AFRESH or KEEP_MEANS, at the end of the round, for all rows
        """
        if self.at == end:
            return self._rejected
        if self.at != start:
            raise OutOfStep(f"a shard that has learned {self.at} entries got those from {start} to {end}")
        running_means = running.tolist()

        def one(mode: int) -> int:
            return self._merge_mode(mode, touched, running_means[mode], memory)

        rejected = sum(in_threads(one, self.network.n_modes, min(self.threads, self.network.n_modes)))
        if then is not None:
            self._restart(keep_means=then == KEEP_MEANS)
        self.at, self._rejected = end, rejected
        return rejected

    def _merge_mode(self, mode: int, touched: Sequence[Touched], running: float, memory: float | None) -> int:
        where, used, n_modes = (
            [part.rows[mode] // self.of for part in touched],
            self._marks[mode],
            self.network.n_modes,
        )
        left = left_noise = None
        if memory is not None:
            times = [part.times[mode].astype(float) for part in touched]
            left = [widening(memory) ** -each for each in times]
            left_noise = [log_noise_widening(memory) ** -each for each in times]
        after = list(zip(where, [part.learned.factors[mode] for part in touched], strict=True))
        prior_var = posterior.factor_prior_var(self.network, self.prior, mode)
        rejected = merge_rows(self.rows.factors[mode], after, prior_var, used=used, left=left, modes=n_modes)
        if self.rows.log_noise:
            after = list(zip(where, [part.learned.log_noise[mode] for part in touched], strict=True))
            prior_var = posterior.node_noise_var(n_modes)
            rejected += merge_log_noise(
                self.rows.log_noise[mode], after, prior_var, running, used, left_noise
            )
        return rejected

    def all_rows(self, nodes: NDArray[np.int64], at: int) -> Rows:
        """Those of the nodes that there are, without spare ones. at: entries that they must have learned."""
        self._check(at)
        self.grow(nodes)
        here = [np.arange(-(-(int(n) - self.number) // self.of)) for n in nodes]
        return _taken(self.rows, here)

    def _check(self, at: int) -> None:
        if self.at != at:
            raise OutOfStep(f"a shard has learned {self.at} entries, the rest of the model {at}")

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for modes in self.rows for part in modes for array in part)

    def grow(self, nodes: NDArray[np.int64]) -> None:
        """Room for so many nodes per mode, of all shards together."""
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


def around(state: State, network: Network, prior: Prior, threads: int = 1) -> Shard:
    """One shard that has the rows of a state, and changes them in place."""
    rows = Rows(state.posterior.factors, state.posterior.log_noise)
    return Shard(network, prior, int(state.seed), rows, at=int(state.counts.entries), threads=threads)


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
