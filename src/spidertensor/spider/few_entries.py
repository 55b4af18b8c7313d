"""Learn or predict few entries with all members of a committee in one compiled call.

`Method.update` and `Method.predict` take any number of entries, and `run_models` is the only way into the
kernel. For few entries the Python work around the kernel takes longer than the kernel: calling each member,
making arrays, packing the weights into working memory. So a state is prepared once and reused.

Microseconds per call on one core, for a committee of four and two modes:

                                     1 learned   10 learned   100 learned   1 predicted
    each member's update or predict     148         230           820           61
    learn, predict                       25          98           720           12
    learn_one, predict_one               19           -             -           10

All of them run the same machine code, so they agree bit for bit. A result of None means that nothing was done
and `Method.update` or `Method.predict` must call each member. Only states of the sequential engine can be
prepared (`SequentialMethod`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from threading import Lock
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Bags, Batch, Method, Update, check_index
from spidertensor.spider.bags import plain
from spidertensor.spider.follow import DECIDE
from spidertensor.spider.interrupts import deferred_interrupts
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.spider.posterior import State
from spidertensor.spider.sequential import SequentialMethod, run_models
from spidertensor.spider.sequential_record import RECORD, Record, only_grown, point_to, point_to_nodes
from spidertensor.spider.stacking import CommitteeState, Mixing, mass_of, mix_and_weigh, update_of_members

# mean, var, noise, log_evidence, rejected, refused, clipped, below: the fields of an Update, as numbers
Bag: TypeAlias = Sequence[tuple[int, int, float]]  # table, row and weight of an entry's attributes, each once
T = TypeVar("T")
Score: TypeAlias = Callable[[NDArray[np.float64], NDArray[np.float64], int], T]
EntryNumbers: TypeAlias = tuple[float, float, float, float, int, int, int, float | None]

_NO_VALUES = np.empty(0)


def ready_committee(
    methods: Sequence[Method], state: CommitteeState, likelihood: Likelihood, mixing: Mixing
) -> ReadyCommittee | None:
    """Prepare a state for few entries; None if these members do not support it."""
    sequential = [method for method in methods if isinstance(method, SequentialMethod)]
    if len(sequential) < len(methods):
        return None
    members = [method.record(own) for method, own in zip(sequential, state.members, strict=True)]
    periods = {int(member.record["settings_refine_every"][0]) for member in members}
    if len(periods) > 1 or len({member.like.dtype for member in members}) > 1:
        return None
    return ReadyCommittee(state, members, [method.follow for method in sequential], likelihood, mixing)


class ReadyCommittee:
    """Learns and predicts few or single entries with one CommitteeState, in place.

    Working memory with the packed weights is kept from call to call; the weights in the state are always up
    to date too. If the state was changed elsewhere, which its entry count shows, the kernel packs them again.
    """

    def __init__(
        self,
        state: CommitteeState,
        members: Sequence[Record],
        follow: Sequence[Callable[[State], None]],
        likelihood: Likelihood,
        mixing: Mixing,
    ) -> None:
        self._state, self._follow_member, self._likelihood, self._mixing = state, follow, likelihood, mixing
        # Not np.concatenate: its dtype is equal but not the same object, and numba would compare it field by
        # field in every call (2 us).
        self._records = records = np.empty(len(members), RECORD)
        for m, member in enumerate(members):
            records[m] = member.record[0]
        self._like = like = members[0].like
        scratch = [np.empty(member.scratch_size + 16, like.dtype) for member in members]
        records["packed_at"] = -1  # no weights packed yet
        records["scratch"] = [-(-array.ctypes.data // 64) * 64 for array in scratch]
        self._kept = members, scratch  # keeps alive what the records point to
        self._n_modes, self._refine_every = (
            int(records[0][name]) for name in ("modes", "settings_refine_every")
        )
        self._writable = all(member.writable for member in members)
        self._n_tables = len(state.members[0].counts.nodes) - self._n_modes
        self._busy = Lock()  # one call at a time may use the working memory
        self._entries, self._of_members = state.counts.entries, state.members[0].counts.entries
        self._prepare_one(len(members))

    def _prepare_one(self, n_members: int) -> None:
        """Allocate the arrays for calls with one entry, which are reused."""
        state, likelihood = self._state, self._likelihood
        self._index, self._value = np.zeros((1, self._n_modes), np.int64), np.zeros(1)
        self._parts, self._before, self._numbers = (
            np.zeros((n_members, 4, 1)),
            np.zeros((n_members, 1)),
            np.zeros(6),
        )
        self._out, self._weights = self._numbers[:, None], state.weights[:, None]
        mass = mass_of(state, likelihood)
        self._calibrated, self._mix = len(mass) > 0, likelihood.mix
        self._in_one_kernel = likelihood.normal or not likelihood.intervals
        self._bag = _empty_bag(16)
        self._pointed: Any = None  # the attributes to which the records point; ... if that is not certain
        self._mix_one = (
            *(state.weights, tuple(state.counts), mass),
            *(self._parts, self._value, *self._mixing, self._before, self._out),
        )

    def goes_on_with(self, state: CommitteeState) -> bool:
        """Whether this state is the one that was prepared, but perhaps for new nodes in spare rows; draws are
        ignored. If so, it is used from here on."""
        known = self._state
        if not all(map(is_, known[1:4], state[1:4])) or len(known.members) != len(state.members):
            return False
        pairs = list(zip(known.members, state.members, strict=True))
        if not all(old is new or only_grown(old, new) for old, new in pairs):
            return False
        with self._busy:
            for record, (old, new) in zip(self._records, pairs, strict=True):
                if old is not new:
                    point_to_nodes(record, new)
            self._state = state
        return True

    def learn(self, batch: Batch) -> Update | None:
        """Learn a batch; None if the members have to learn it one by one."""
        return self.learn_and_score(batch, self._update)

    def learn_and_score(self, batch: Batch, score: Score[T]) -> T | None:
        """Learn a batch and return its score; None if the members have to learn it one by one.

        score: called with the values, what the members reported, and the number of rejected elements
        """
        index, value, bags, weight = batch
        n = len(value)
        if (
            not self._writable
            or not _plain(index, np.int64, (n, self._n_modes))
            or not _plain(value, np.float64, (n,))
            or not (weight is None or _plain(weight, np.float64, (n,)))
        ):
            return None
        parts, rejected = np.empty((len(self._records), 4, n)), 0
        given = index, value, self._checked(index, bags), weight
        # An interrupt takes effect after a compiled call: never between two members, but perhaps between them
        # and the committee. (Deferring it would take longer than an entry.)
        try:
            with self._busy:
                stopped, rejected = self._run(True, 0, *given, self._records, parts)
            if stopped < 0:
                return None
            rejected += self._follow(*given, parts)
            return score(value, parts, rejected)
        except BaseException:
            if self._of_members.item() != self._entries.item():
                score(value, parts, rejected + self._follow(*given, parts))
            raise

    def _follow(self, index, value, bags: Bags | None, weight, parts) -> int:
        """Where the prior was refined, members may have stopped to follow a change: let them learn the rest.
        Returns how many elements were rejected meanwhile."""
        start, rejected = self._entries.item(), 0
        if start % self._refine_every + len(value) < self._refine_every:
            return 0
        stopped = [m for m, state in enumerate(self._state.members) if state.stream.watching == DECIDE]
        if not stopped:
            return 0
        with deferred_interrupts(), self._busy:
            for m in stopped:
                state, one = self._state.members[m], slice(m, m + 1)
                while state.stream.watching == DECIDE:
                    self._follow_member[m](state)
                    done = int(state.counts.entries) - start
                    rejected += self._run(
                        True, done, index, value, bags, weight, self._records[one], parts[one]
                    )[1]
        return rejected

    def _checked(self, index: NDArray[np.integer], bags: Bags | None) -> Bags | None:
        if bags is None:
            return None
        check_index(index, self._n_modes, bags, self._n_tables)
        return plain(bags)

    def _run(
        self, learning: bool, start: int, index, value, bags: Bags | None, weight, records, parts
    ) -> tuple[int, int]:
        """run_models with records that point to these attributes and weights."""
        if self._pointed is not None or bags is not None or weight is not None:
            self._point_to(bags, weight)
        return run_models(learning, start, index, value, records, self._like, parts)

    def _point_to(self, bags: Bags | None, weight: NDArray[np.float64] | None = None) -> None:
        self._pointed = ...  # an interrupt may come before it points to all of them
        point_to(self._records, bags, weight)
        if weight is None:
            self._pointed = bags

    def _put(self, nodes: Sequence[int], bag: Bag | None) -> None:
        """Write one entry where the kernel reads it. Its attributes stay in place from call to call."""
        for mode, node in enumerate(nodes):
            self._index[0, mode] = node
        if bag is None:
            if self._pointed is not None:
                self._point_to(None)
            return
        if len(bag) > len(self._bag.table):
            self._bag = _empty_bag(2 * len(bag))
        start, table, row, weight = self._bag
        start[1] = len(bag)
        for at, element in enumerate(bag):
            table[at], row[at], weight[at] = element
        if self._pointed is not self._bag:
            self._point_to(self._bag)

    def _update(self, value: NDArray[np.float64], parts: NDArray[np.float64], rejected: int) -> Update:
        return update_of_members(self._state, self._likelihood, self._mixing, value, parts, rejected)

    def parts(self, index: NDArray[np.integer], bags: Bags | None = None) -> NDArray[np.float64] | None:
        """(M, 4, n) mean, var and noise of these rows by each member, and a row without meaning.

        None if the array's layout does not suit the kernel.
        """
        if not _plain(index, np.int64, (len(index), self._n_modes)):
            return None
        parts = np.empty((len(self._records), 4, len(index)))
        bags = self._checked(index, bags)
        with self._busy:
            self._run(False, 0, index, _NO_VALUES, bags, None, self._records, parts)
        return parts

    def learn_one(self, nodes: Sequence[int], value: float, bag: Bag | None = None) -> EntryNumbers | None:
        """`learn` for one entry; None also if the members are out of step."""
        entries = self._entries.item()
        if (
            (entries + 1) % self._refine_every == 0
            or self._of_members.item() != entries
            or not self._writable
        ):
            return None
        if not self._in_one_kernel:
            return _numbers(self.learn(Batch(np.array([nodes], np.int64), np.array([value]), _bags_of(bag))))
        with self._busy:
            self._put(nodes, bag)
            self._value[0] = value
            try:
                stopped, rejected = run_models(
                    True, 0, self._index, self._value, self._records, self._like, self._parts
                )
                if stopped < 0:
                    return None
                refused, clipped = mix_and_weigh(*self._mix_one)
            except BaseException:  # an interrupt between the two calls: see `learn`
                if self._of_members.item() != self._entries.item():
                    mix_and_weigh(*self._mix_one)
                raise
            if not self._calibrated:
                self._mix(self._before, self._parts, self._out)
            mean, var, noise, log_evidence, below, _ = self._numbers.tolist()
        return mean, var, noise, log_evidence, rejected, refused, clipped, below if self._calibrated else None

    def predict_one(self, nodes: Sequence[int], bag: Bag | None = None) -> tuple[float, float, float]:
        """Mean, var and noise of one entry, as in a Prediction."""
        with self._busy:
            self._put(nodes, bag)
            run_models(False, 0, self._index, self._value, self._records, self._like, self._parts)
            self._mix(self._weights, self._parts, self._out)
            mean, var, noise, *_ = self._numbers.tolist()
        return mean, var, noise


def _empty_bag(room: int) -> Bags:
    return Bags(
        np.zeros(2, np.int64), np.zeros(room, np.int64), np.zeros(room, np.int64), np.zeros(room, np.float32)
    )


def _bags_of(bag: Bag | None) -> Bags | None:
    if bag is None:
        return None
    table, row, weight = zip(*bag, strict=True) if bag else ((), (), ())
    start = np.array([0, len(bag)], np.int64)
    return Bags(start, np.array(table, np.int64), np.array(row, np.int64), np.array(weight, np.float32))


def _numbers(update: Update | None) -> EntryNumbers | None:
    if update is None:
        return None
    mean, var, noise, log_evidence = (part.item() for part in update[:4])
    below = None if update.below is None else update.below.item()
    return mean, var, noise, log_evidence, update.rejected, update.refused, update.clipped, below


def _plain(array: NDArray[Any], dtype: type, shape: tuple[int, ...]) -> bool:
    """Whether an array can go to a kernel: kernels do not check, and another layout would be recompiled."""
    return array.dtype == dtype and array.shape == shape and array.flags.carray
