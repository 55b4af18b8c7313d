"""The rows of a model's nodes, spread over n shards: row r of a mode is in shard r % n, at place r // n.

New nodes get consecutive rows, so shards grow evenly. A round fetches the rows that its entries touch and
sends back their new values; the shard knows the old ones, and merges. In a single process one shard wraps the
arrays of a state.
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

Numbers = Sequence[NDArray[np.int64]]  # row numbers per mode

AFRESH, KEEP_MEANS = "afresh", "keep means"  # how rows restart after a change of the values: follow.py


class Rows(NamedTuple):
    """Factors and log_noise (if any) of some nodes of a member, per mode."""

    factors: tuple[Gaussian, ...]
    log_noise: tuple[Gaussian, ...]


class Touched(NamedTuple):
    """Rows of a shard that one worker changed in a round."""

    rows: Numbers  # each once
    times: Numbers  # number of the worker's entries that each row was in
    learned: Rows


class OutOfStep(RuntimeError):
    """A request does not match the entries learned so far. No round is lost or counted twice."""


class Shard:
    """The rows of one member in one shard.

    at: number of entries the rows have learned. It identifies the next round: a repeat of the last one
        changes nothing, any other is refused.
    threads: for merging, at most one per mode
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
        """Copies of some rows, in this order.

        nodes: number of nodes per mode
        at:    number of entries the rows must have learned: a part repeated too late would get other rows
        """
        self._check(at)
        self.grow(nodes)
        return _taken(self.rows, [each // self.of for each in rows] if self.of > 1 else rows)

    def merge(
        self,
        touched: Sequence[Touched],
        start: int,
        end: int,
        memory: float | None = None,
        then: str | None = None,
    ) -> int:
        """Merge the round of entries from `start` to `end`, once; returns how many elements were rejected.

        touched: the rows changed by each worker
        memory:  of a node; None: none
        then:    how all rows restart at the end of the round: AFRESH, KEEP_MEANS or None
        """
        if self.at == end:
            return self._rejected
        if self.at != start:
            raise OutOfStep(f"a shard that has learned {self.at} entries received {start} to {end}")

        def one(mode: int) -> int:
            return self._merge_mode(mode, touched, memory)

        rejected = sum(in_threads(one, self.network.n_modes, min(self.threads, self.network.n_modes)))
        if then is not None:
            self._restart(keep_means=then == KEEP_MEANS)
        self.at, self._rejected = end, rejected
        return rejected

    def _merge_mode(self, mode: int, touched: Sequence[Touched], memory: float | None) -> int:
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
            rejected += merge_log_noise(self.rows.log_noise[mode], after, prior_var, used, left_noise)
        return rejected

    def all_rows(self, nodes: NDArray[np.int64], at: int) -> Rows:
        """All rows without spare ones. at: number of entries they must have learned."""
        self._check(at)
        self.grow(nodes)
        here = [np.arange(-(-(int(n) - self.number) // self.of)) for n in nodes]
        return _taken(self.rows, here)

    def _check(self, at: int) -> None:
        if self.at != at:
            raise OutOfStep(f"a shard has learned {self.at} entries, but the rest of the model {at}")

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for modes in self.rows for part in modes for array in part)

    def grow(self, nodes: NDArray[np.int64]) -> None:
        """Make room for this many nodes per mode, counted over all shards."""
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
        """Starting values of places first..last of this shard, the same as for these nodes in any model."""
        step, parts = 2**16 // self.of + 1, []
        for begin in range(first, last, step):  # in blocks: draws all shards' rows, keeps its own
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
    """One shard that wraps the rows of a state and changes them in place."""
    rows = Rows(state.posterior.factors, state.posterior.log_noise)
    return Shard(network, prior, int(state.seed), rows, at=int(state.counts.entries), threads=threads)


def cut(state: State, number: int, of: int) -> Rows:
    """Copies of the rows of a state that belong to shard `number` of `of`."""
    state = posterior.trim(state)
    return Rows(
        *(
            tuple(Gaussian(*(np.ascontiguousarray(part[number::of]) for part in each)) for each in modes)
            for modes in (state.posterior.factors, state.posterior.log_noise)
        )
    )


def joined(state: State, shards: Sequence[Rows]) -> State:
    """The inverse of `cut`: the state with the rows of all shards."""
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
