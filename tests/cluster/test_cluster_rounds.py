"""Rounds of several workers, in one process: what is exact, what depends on nothing, what stays possible."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pytest

from spidertensor import checkpoint
from spidertensor.cluster import parts, rounds
from spidertensor.cluster.merge import _joined_windows, merge_weights
from spidertensor.cluster.merge_rows import MOST, RowMerge, marks
from spidertensor.cluster.parts import Recipe, Worker
from spidertensor.cluster.rounds import Member, Rounds, split
from spidertensor.method import Batch
from spidertensor.spider import posterior
from spidertensor.spider.crew import Crew
from spidertensor.spider.follow import note_in_window
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Gaussian, Prior
from spidertensor.spider.robust import LARGEST_LOG_NOISE
from spidertensor.spider.sequential import sequential

NETWORK = Network((3, 2, 3), (6, 5), "relu", bias=True, multilinear=4)
GAUSSIAN_OPTIONS = {"clip": 4.0, "node_noise": True, "memory": 300.0, "noise_memory": 1000.0}


def recipe(likelihood: str = "gaussian", refine_every: int = 64, **options) -> Recipe:
    options = (GAUSSIAN_OPTIONS if likelihood == "gaussian" else {"memory": 300.0}) | options
    return Recipe(NETWORK, Prior(), likelihood, refine_every, tuple(options.items()))


def some_batch(n: int, seed: int = 0, nodes: int = 12, likelihood: str = "gaussian") -> Batch:
    rng = np.random.default_rng(seed)
    index = rng.integers(nodes, size=(n, 3))
    value = np.sin(index[:, 0]) + 0.5 * np.cos(index[:, 1] + index[:, 2]) + 0.3 * rng.normal(size=n)
    return Batch(index, value if likelihood == "gaussian" else (value > 0).astype(float))


def same(a, b) -> None:
    a, b = (checkpoint.flatten(posterior.trim(each)) for each in (a, b))
    assert a.keys() == b.keys()
    for name, array in a.items():
        np.testing.assert_array_equal(array, b[name], err_msg=name)


def begin(of: Recipe, nodes: int, workers: int = 1, crew: Crew | None = None):
    """A member that learns in rounds, and a fresh state with so many nodes per mode."""
    state = posterior.grow(parts.whole_engine(of).init(0), NETWORK, of.prior, np.full(3, nodes))
    used = [marks(len(each.mean)) for each in state.posterior.factors]
    return Member(of, [Worker(of) for _ in range(workers)], crew or Crew(1), used), state


@pytest.mark.parametrize("likelihood", ["gaussian", "probit"])
def test_one_worker_is_the_sequential_engine_bit_for_bit(likelihood):
    of, batch = recipe(likelihood), some_batch(1024, likelihood=likelihood)
    if likelihood == "gaussian":
        batch.value[450:] *= 60  # followed: new units, and all rows start anew
    one, told = parts.whole_engine(of).update(parts.whole_engine(of).init(0), batch)
    member, state = begin(of, 12)
    updates = []
    for start in range(0, 1024, of.refine_every):  # a round ends where the engine refines
        state, update = rounds.one_round(member, state, batch.part(start, start + 64))
        updates.append(update)
    assert likelihood == "probit" or one.stream.followed.sum() > 0
    same(one, state)
    np.testing.assert_array_equal(told.mean, np.concatenate([each.mean for each in updates]))
    np.testing.assert_array_equal(told.log_evidence, np.concatenate([each.log_evidence for each in updates]))


def test_split_for_one_worker_is_that_engine():
    assert split(recipe(), Rounds(1)) is parts.whole_engine(recipe())


class AnyOrder(Crew):
    """Parts are learned and merged in a random order."""

    def run(self, work, n):
        results = [None] * n
        for place in np.random.default_rng().permutation(n):
            results[place] = work(place)
        return results


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_change_nothing(threads):
    of, batch = recipe(), some_batch(3000, nodes=40)
    found = []
    for n in (1, threads):
        method = split(of, Rounds(4, 64), n)
        state, update = method.update(method.init(0), batch)
        found.append((state, update.log_evidence))
    same(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_a_worker_has_every_node_of_its_part_once():
    rng, of = np.random.default_rng(0), recipe()
    batch = Batch(rng.integers(0, 300, size=(500, 3)), rng.normal(size=500))
    _, state = begin(of, 300)
    found = Worker(of).learn(state, batch)
    for mode in range(3):
        wanted, often = np.unique(batch.index[:, mode], return_counts=True)
        order = np.argsort(found.rows[mode])
        np.testing.assert_array_equal(found.rows[mode][order], wanted)
        np.testing.assert_array_equal(found.times[mode][order], often)
    assert found.reported.shape == (4, 500)


def test_a_worker_learns_the_same_wherever_it_has_learned_before():
    """It uses its memory again, and makes more of it for a longer part."""
    of, (_, state) = recipe(), begin(recipe(), 40)
    used = Worker(of)
    for n in (50, 400):
        used.learn(state, some_batch(n, nodes=40 if n > 50 else 3))
    again, fresh = (each.learn(state, some_batch(100, seed=5, nodes=40)) for each in (used, Worker(of)))
    np.testing.assert_array_equal(again.reported, fresh.reported)
    for mode, rows in enumerate(fresh.rows):
        np.testing.assert_array_equal(again.rows[mode], rows)
        for own, other in zip(
            again.state.posterior.factors[mode], fresh.state.posterior.factors[mode], strict=True
        ):
            np.testing.assert_array_equal(own[: len(rows)], other[: len(rows)])


def test_who_learns_and_merges_what_and_when_changes_nothing():
    of, batch, how = recipe(), some_batch(3000, nodes=40), Rounds(4, 64)
    batch.value[2000:] += 50  # followed
    one, update = split(of, how).update(split(of, how).init(0), batch)
    member, state = begin(of, 40, 4, AnyOrder(1))
    updates, done = [], 0
    while done < 3000:
        end = done + how.length(done)
        state, told = rounds.one_round(member, state, batch.part(done, end))
        updates, done = [*updates, told], end
    assert one.stream.followed.sum() > 0
    same(one, state)
    np.testing.assert_array_equal(
        update.log_evidence, np.concatenate([each.log_evidence for each in updates])
    )


def test_calls_that_end_where_rounds_end_change_nothing():
    method, batch, how = split(recipe(), Rounds(3, 64)), some_batch(3000), Rounds(3, 64)
    one, _ = method.update(method.init(0), batch)
    state, done = method.init(0), 0
    while done < 3000:
        end = done + (how.whole(done, min(700, 3000 - done)) or 3000 - done)
        state, _ = method.update(state, Batch(batch.index[done:end], batch.value[done:end]))
        done = end
    same(one, state)


def test_workers_with_nodes_of_their_own_learn_what_one_learns():
    """Probit has no noise, and weights of no variance do not move: then only the nodes are shared."""
    of, batch = recipe("probit", memory=None), some_batch(400, nodes=5, likelihood="probit")
    batch.index[200:] += 5  # the second worker has other nodes
    engine, (member, state) = parts.engine(of), begin(of, 10, 2)
    for weight in state.posterior.weights:
        weight.var[:] = 1e-12
    alone = copy.deepcopy(state)
    state, _ = rounds.one_round(member, state, batch)
    mixed = np.arange(400).reshape(2, 200).T.ravel()  # the two workers' entries by turns
    alone, _ = engine.update(alone, Batch(batch.index[mixed], batch.value[mixed]))
    for own, other in zip(state.posterior.factors, alone.posterior.factors, strict=True):
        np.testing.assert_allclose(own.mean, other.mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(own.var, other.var, rtol=1e-4)


def slow_merge(before, after, most, prior_var):
    """One element, as section 18 says it. before: (mean, var); after: one for each worker that touched it."""
    if len(after) == 1:
        return after[0]
    start, own = 1 / before[1], [1 / var for _, var in after]
    share = min(1.0, most / len(after))
    step = sum(precision * (mean - before[0]) for precision, (mean, _) in zip(own, after, strict=True))
    more = sum(precision - start for precision in own)
    least = min(1 / prior_var, start, *own)
    return before[0] + share * step / max(start + share * more, *own), 1 / max(start + more, least)


def random_rows(rng, shape, spread=1.0) -> Gaussian:
    mean = rng.normal(size=shape).astype(np.float32)
    return Gaussian(mean, (0.1 * np.exp(spread * rng.normal(size=shape))).astype(np.float32))


@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_rows_are_merged_as_the_formulas_say(spread):
    rng = np.random.default_rng(0)
    rows, workers = random_rows(rng, (600, 4)), 12
    touched = [np.flatnonzero(rng.random(6) < [1, 1, 0.5, 0.2, 0.1, 0]) for _ in range(workers)]
    touched[0] = np.array([0, 1, 4])
    touched = [100 * where for where in touched]  # some for each thread
    parts = [(where, random_rows(rng, (len(where), 4), spread)) for where in touched]
    before = Gaussian(rows.mean.copy(), rows.var.copy())
    merge = RowMerge(rows, parts, np.full(4, 0.3, np.float32))
    assert [merge.run(part, 4) for part in (2, 0, 3, 1)] == [0] * 4  # by several threads
    assert len(touched) > MOST
    for row in range(0, 600, 50):
        for e in range(4):
            after = [
                (float(own.mean[where == row, e][0]), float(own.var[where == row, e][0]))
                for where, own in parts
                if row in where
            ]
            then = float(before.mean[row, e]), float(before.var[row, e])
            wanted = slow_merge(then, after, MOST, 0.3) if after else then
            np.testing.assert_allclose((rows.mean[row, e], rows.var[row, e]), wanted, rtol=1e-4, atol=1e-5)


def slow_weight(before, after, steps, prior_var):
    start, share = 1 / before[1], steps / len(after)
    more = sum(1 / var - start for _, var in after)
    weighted = sum(mean / var - before[0] * start for mean, var in after)
    least = min(1 / prior_var, start, *(1 / var for _, var in after))
    mean = (before[0] * start + share * weighted) / max(start + share * more, least)
    return mean, 1 / max(start + more, least)


def test_weights_take_few_steps_and_all_of_the_precision():
    rng = np.random.default_rng(0)
    before, after = random_rows(rng, (3, 2)), [random_rows(rng, (3, 2)) for _ in range(4)]
    merged, rejected = merge_weights(before, after, 100.0)
    then = [(float(before.mean[i]), float(before.var[i])) for i in np.ndindex(3, 2)]
    wanted = [
        slow_weight(each, [(float(a.mean[i]), float(a.var[i])) for a in after], 2, 100.0)
        for each, i in zip(then, np.ndindex(3, 2), strict=True)
    ]
    assert rejected == 0
    np.testing.assert_allclose(np.stack(merged, -1).reshape(6, 2), wanted, rtol=1e-4)


def test_what_is_not_a_number_is_rejected_and_counted():
    rng = np.random.default_rng(0)
    rows = random_rows(rng, (3, 2))
    before = Gaussian(rows.mean.copy(), rows.var.copy())
    parts = [(np.arange(3), random_rows(rng, (3, 2))) for _ in range(2)]
    parts[0][1].mean[1, 0] = np.inf
    parts[1][1].var[2, 1] = 0
    with np.errstate(all="ignore"):
        assert RowMerge(rows, parts, 0.1).run() == 2
    assert (rows.mean[1, 0], rows.var[2, 1]) == (before.mean[1, 0], before.var[2, 1])
    assert np.isfinite(rows).all()


def test_a_memory_cannot_take_all_precision():
    """Each of 8 workers has widened the variance: the sum of the changes would leave less than nothing."""
    rows = Gaussian(np.ones((1, 1), np.float32), np.full((1, 1), 0.01, np.float32))
    wide = Gaussian(np.ones((1, 1), np.float32), np.full((1, 1), 0.02, np.float32))
    assert RowMerge(rows, [(np.array([0]), wide)] * 8, 0.05).run() == 0
    np.testing.assert_allclose(rows.var, 0.05, rtol=1e-6)
    assert rows.mean[0, 0] == 1


def test_a_memory_forgets_in_turn_and_errors_that_all_have_corrected_are_not_added_up():
    """Half of each worker's start is left, and it has learned as much again: steady, wherever it goes."""
    rows = Gaussian(np.zeros((1, 1), np.float32), np.full((1, 1), 0.01, np.float32))
    own = Gaussian(np.ones((1, 1), np.float32), np.full((1, 1), 0.01, np.float32))
    left = [np.array([0.5])] * 8
    assert RowMerge(rows, [(np.array([0]), own)] * 8, 1.0, left=left, modes=2).run() == 0
    np.testing.assert_allclose((rows.mean[0, 0], rows.var[0, 0]), (1, 0.01), rtol=1e-5)


@pytest.mark.parametrize("memory", [20.0, 100.0, 500.0])
def test_a_memory_is_stable_with_many_workers(memory):
    """Few nodes, so that every worker touches all of them, in rounds as long as several memories."""
    train, method = some_batch(40_000, nodes=3), split(recipe(memory=memory), Rounds(16, 256))
    _, update = method.update(method.init(0), train)
    assert np.abs(update.mean).max() < 10
    assert np.sqrt(np.mean((update.mean - train.value)[4000:] ** 2)) < 0.4  # the noise is 0.3


def test_log_noise_of_a_new_node_starts_at_0_and_has_a_bound():
    prior = posterior.node_noise_var(3)
    rows = Gaussian(np.zeros(2, np.float32), np.full(2, prior, np.float32))
    own = Gaussian(np.full(2, 5.9, np.float32), np.full(2, prior / 2, np.float32))
    assert RowMerge(rows, [(np.arange(2), own)] * 2, prior, bound=LARGEST_LOG_NOISE).run() == 0
    # two workers, each as sure of 11.8 as the prior is of 0: 2 * 11.8 / 3
    np.testing.assert_allclose(rows.mean, 6.0)
    np.testing.assert_allclose(rows.var, prior / 3, rtol=1e-5)


def test_windows_of_several_workers_are_one_window():
    rng = np.random.default_rng(0)
    y, f, var = rng.normal(size=(3, 500))
    together, cuts = np.zeros(7), [0, 3, 3, 200, 500]
    note_in_window(together, y, f, np.exp(var), 4.0)
    joined = np.zeros(7)
    for start, end in pairwise(cuts):
        own = np.zeros(7)
        note_in_window(own, y[start:end], f[start:end], np.exp(var[start:end]), 4.0)
        joined = _joined_windows(joined, own)
    np.testing.assert_allclose(joined, together, rtol=1e-9)


def test_counts_are_those_of_all_entries():
    batch = some_batch(2000)
    batch.value[[5, 700, 1500]] = 1e7, np.nan, 40.0
    method = split(recipe(), Rounds(4, 64))
    state, update = method.update(method.init(0), batch)
    assert int(state.counts.entries) == 2000
    assert (int(state.counts.refused), update.refused) == (1, 1)
    assert update.clipped == int(state.counts.clipped) > 1
    learned = np.isfinite(update.log_evidence)
    np.testing.assert_allclose(update.log_evidence[learned].sum(), state.counts.log_evidence)
    assert all(np.isfinite(array).all() for array in checkpoint.flatten(state).values())


def test_several_workers_learn_nearly_what_one_learns():
    train, test = some_batch(20_000, nodes=30), some_batch(2000, seed=1, nodes=30)
    errors = []
    for workers in (1, 8):
        method = split(recipe(memory=None), Rounds(workers, 256))
        state, _ = method.update(method.init(0), train)
        errors.append(np.sqrt(np.mean((method.predict(state, test.index).mean - test.value) ** 2)))
    assert errors[0] < 0.33  # the noise is 0.3
    assert errors[1] < 1.05 * errors[0]


def test_what_workers_learn_of_other_nodes_moves_the_noise_of_a_node_only_as_the_noise_of_all():
    """Section 12, with four workers: nodes 0 to 4 come first and are not seen again."""
    rng = np.random.default_rng(0)
    first, later = some_batch(2000, nodes=5), some_batch(6000, nodes=5)
    first.value[:] = np.where(first.index[:, 0] < 2, 3.0, 0.3) * rng.normal(size=2000)
    later.index[:] += 5
    method = split(recipe(memory=None, refine_every=256), Rounds(4, 256))

    def relative(state):
        """The log noise of these nodes, which is relative to the noise of all."""
        return np.stack([each.mean[:5] for each in state.posterior.log_noise])

    state, _ = method.update(method.init(0), first)
    before = relative(state)
    assert before[0, :2].min() > before[0, 2:].max() + 0.5
    state, _ = method.update(state, Batch(later.index, 3 * later.value))
    assert not state.stream.followed.any()
    np.testing.assert_array_equal(relative(state), before)


@pytest.mark.parametrize("mode", [0, 2])
def test_the_order_of_a_stream_does_not_decide_who_has_much_noise_with_workers(mode):
    """All nodes alike, sorted by one mode: the first end with about the noise of the last. Workers learn the
    same node at once, so single nodes differ by more than with one worker."""
    rng = np.random.default_rng(0)
    index = rng.integers(50, size=(20_000, 3))
    index = index[np.argsort(index[:, mode], kind="stable")]
    value = np.take_along_axis(rng.normal(size=(50, 3)), index, axis=0).sum(axis=1) / np.sqrt(3)
    method = split(recipe(memory=None, noise_memory=10_000.0), Rounds(4, 256))
    state, _ = method.update(method.init(0), Batch(index, value + 0.5 * rng.normal(size=20_000)))
    noise = np.sqrt(method.predict(state, np.repeat(np.arange(50)[:, None], 3, axis=1)).noise)
    assert noise.max() / noise.min() < 3
    assert 1 / 1.6 < noise[:5].mean() / noise[-5:].mean() < 1.6


def test_rounds_grow_with_the_stream():
    how = Rounds(8, 1024)
    assert how.length(0) == 8 * rounds.FIRST
    assert how.length(10**7) == 8 * 1024
    lengths = [how.length(n) for n in range(0, 10**6, 1000)]
    assert lengths == sorted(lengths)
    assert all(length % 8 == 0 for length in lengths)
    assert how.whole(0, 8 * rounds.FIRST - 1) == 0
    assert how.whole(0, 8 * rounds.FIRST + 1) == 8 * rounds.FIRST


def test_the_engine_of_workers_does_not_refine():
    of, batch = recipe(), some_batch(200)
    state, _ = parts.engine(of).update(parts.engine(of).init(0), batch)
    fresh = sequential(NETWORK, parts.LIKELIHOODS["gaussian"], of.prior).init(0)
    for site, start in zip(state.sites, fresh.sites, strict=True):
        np.testing.assert_array_equal(site.precision, start.precision)
