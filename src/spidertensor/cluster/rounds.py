"""Several threads learn one member in rounds: mathematics.md section 18.

A round takes the next entries of the stream and cuts them into one part per worker. All workers start from
the state before the round; each learns its part entry by entry with the sequential engine, without refining
the prior. Then their states are merged (merge.py, merge_rows.py), and the prior is refined once.

Which entries are in which part depends only on the number of entries before. So the result is the same
whichever thread learns a part.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.cluster.merge import for_workers, merge_shared
from spidertensor.cluster.merge_rows import RowMerge, marks
from spidertensor.cluster.parts import Recipe, Worker, WorkerResult, whole_engine
from spidertensor.method import Batch, Method, Update, check_batch
from spidertensor.method import joined as joined_updates
from spidertensor.spider import posterior
from spidertensor.spider.crew import Crew
from spidertensor.spider.follow import DECIDE, follow, full_window
from spidertensor.spider.likelihoods import likelihood_by_name
from spidertensor.spider.likelihoods.gaussian import forgetting
from spidertensor.spider.posterior import State
from spidertensor.spider.robust import LARGEST_LOG_NOISE, log_noise_widening, widening
from spidertensor.spider.spike_slab import refine_layer

PART = 16_384  # most entries of a worker's part of a round: longer ones are no faster
FIRST = 32  # entries of a part at the start of a stream
GROWTH = 64  # a round has at most 1/GROWTH of the entries before it


class Rounds(NamedTuple):
    """How a stream is cut: the number of workers, and the most entries (`part`) of each in a round.

    Early on every entry changes the model a lot, and workers that do not see each other's entries would all
    learn the same. So rounds are short at first and grow with the stream.
    """

    workers: int
    part: int = PART

    def length(self, before: int) -> int:
        """Number of entries in the round that starts after `before` entries."""
        return self.workers * min(max(before // (GROWTH * self.workers), FIRST), self.part)

    def whole(self, before: int, n: int) -> int:
        """How many of the next n entries fill complete rounds."""
        end = 0
        while end + (size := self.length(before + end)) <= n:
            end += size
        return end


class Member(NamedTuple):
    """A member that learns in rounds."""

    recipe: Recipe
    workers: list[Worker]
    crew: Crew
    marks: list[NDArray[np.int32]]  # see merge_rows.py


def split(recipe: Recipe, rounds: Rounds, threads: int = 1) -> Method:
    """A member learned in rounds, by so many threads. With one worker it is learned whole."""
    network, prior = recipe.network, recipe.prior
    whole = whole_engine(recipe)
    if rounds.workers == 1:
        return whole
    workers = [Worker(recipe) for _ in range(rounds.workers)]

    def update(state: State, batch: Batch) -> tuple[State, Update]:
        check_batch(batch, network.n_modes)
        if not len(batch.value):
            return state, Update(*np.empty((4, 0)), rejected=0)
        state = posterior.grow(state, network, prior, batch.index.max(axis=0) + 1)
        used = [marks(len(each.mean)) for each in state.posterior.factors]
        updates, done = [], 0
        with Crew(min(threads, rounds.workers)) as crew:
            while done < len(batch.value):
                end = done + rounds.length(int(state.counts.entries))
                state, update = one_round(Member(recipe, workers, crew, used), state, batch.part(done, end))
                updates.append(update)
                done = end
        return state, joined_updates(updates)

    return Method(whole.init, update, whole.predict, unit="batch")


def one_round(member: Member, state: State, batch: Batch) -> tuple[State, Update]:
    """Learn a round. Changes the rows of the state in place."""
    recipe, n = member.recipe, len(batch.value)
    ends = np.linspace(0, n, min(len(member.workers), n) + 1).astype(int).tolist()
    start = for_workers(state, len(ends) - 1)
    parts = [batch.part(*part) for part in pairwise(ends)]
    learned = member.crew.run(lambda worker: member.workers[worker].learn(start, parts[worker]), len(parts))
    after, rejected = _merged(member, state, learned)
    rejected += _refined(after, recipe, n)
    after.counts.rejected[()] += rejected
    lost = [
        int(getattr(after.counts, name) - getattr(state.counts, name))
        for name in ("rejected", "refused", "clipped")
    ]
    return after, Update(*np.concatenate([each.reported for each in learned], axis=1), *lost)


def _merged(member: Member, state: State, learned: list[WorkerResult]) -> tuple[State, int]:
    """The state after all workers' parts; and how many elements of its rows were rejected."""
    recipe, merges = member.recipe, []
    memory, n_modes = recipe.option("memory"), recipe.network.n_modes
    left = left_noise = None
    for mode, used in enumerate(member.marks):
        if memory is not None:
            left, left_noise = (
                [wider ** -each.times[mode].astype(float) for each in learned]
                for wider in (widening(memory), log_noise_widening(memory))
            )
        factors = [(each.rows[mode], each.state.posterior.factors[mode]) for each in learned]
        prior_var = posterior.factor_prior_var(recipe.network, recipe.prior, mode)
        own = state.posterior.factors[mode]
        merges.append(RowMerge(own, factors, prior_var, used=used, left=left, modes=n_modes))
        if state.posterior.log_noise:
            log_noise = [(each.rows[mode], each.state.posterior.log_noise[mode]) for each in learned]
            prior_var, own = posterior.node_noise_var(n_modes), state.posterior.log_noise[mode]
            bound = LARGEST_LOG_NOISE
            merges.append(RowMerge(own, log_noise, prior_var, used=used, left=left_noise, bound=bound))
    of = 1 << (len(learned) - 1).bit_length()
    keeps = forgetting(recipe.option("noise_memory"))

    def merge(job: int) -> State | int:
        if job == 0:  # beside the rows
            return merge_shared(state, [each.state for each in learned], recipe.prior.slab_var, keeps)
        return sum(each.run(job - 1, of) for each in merges)

    after, *rejected = member.crew.run(merge, 1 + of)
    return after, sum(rejected)  # pyright: ignore


def _refined(state: State, recipe: Recipe, entries: int) -> int:
    """Do in place, once for a round of `entries`, what the engine does every `refine_every` entries.

    Returns how many elements were rejected.
    """
    prior, rejected = recipe.prior, 0
    wider = widening(recipe.option("memory")) ** (entries / recipe.refine_every)
    for weight, site in zip(state.posterior.weights, state.sites, strict=True):
        if wider > 1:
            var = weight.var.astype(np.float64)
            weight.var[:] = np.maximum(var, np.minimum(prior.slab_var, var * wider))
        rejected += refine_layer(weight, site, prior.slab_var, prior.rho0)
    clip = recipe.option("clip")
    follows = clip is not None and likelihood_by_name(recipe.likelihood).normal
    if follows and full_window.py_func(state.stream, clip) and state.stream.watching == DECIDE:
        follow(state, recipe.network, prior)
    return rejected
