"""A method written outside of the library passes the contract; broken in one place, it fails, by name."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numba
import numpy as np
import pytest

from spidertensor.method import Bags, Batch, Method, Prediction, Update, check_batch, check_index
from spidertensor.spider.likelihoods import GAUSSIAN, LIKELIHOODS
from spidertensor.testing import Case, Traits, check_method, checks_of
from spidertensor.testing.keeping import compilations


class Totals(NamedTuple):
    """(nodes,) of one mode, with room for nodes to come."""

    count: np.ndarray
    total: np.ndarray


class NodeMeansState(NamedTuple):
    start: np.ndarray  # what a node is worth before any entry, drawn
    nodes: np.ndarray  # (n_modes,) how many there are
    modes: tuple[Totals, ...]


def node_means(n_modes: int) -> Method:
    """Predicts the average over the modes of the mean value that a node has had."""

    def init(seed: int) -> NodeMeansState:
        start = np.random.default_rng(seed).normal(size=())
        empty = tuple(Totals(np.zeros(0), np.zeros(0)) for _ in range(n_modes))
        return NodeMeansState(np.asarray(start), np.zeros(n_modes, np.int64), empty)

    def update(state: NodeMeansState, batch: Batch) -> tuple[NodeMeansState, Update]:
        check_batch(batch, n_modes)
        nodes = np.maximum(state.nodes, batch.index.max(axis=0, initial=-1) + 1)
        modes = tuple(_with_room(mode, n) for mode, n in zip(state.modes, nodes, strict=True))
        state, before, refused = NodeMeansState(state.start, nodes, modes), [], 0
        for row, value in zip(batch.index, batch.value, strict=True):
            before.append(np.concatenate(predict(state, row[None])))
            refused += not np.isfinite(value)
            for mode, node in zip(modes, row, strict=True):
                mode.count[node] += np.isfinite(value)
                mode.total[node] += value if np.isfinite(value) else 0.0
        mean, var, noise = np.array(before).reshape(-1, 3).T
        log_evidence = GAUSSIAN.log_evidence(batch.value, mean, var, noise)
        return state, Update(mean, var, noise, log_evidence, rejected=refused, refused=refused)

    def predict(state: NodeMeansState, index: np.ndarray, bags: Bags | None = None) -> Prediction:
        check_index(index, n_modes, bags)
        f = np.zeros(len(index))
        for mode, nodes in zip(state.modes, index.T, strict=True):
            known = (nodes >= 0) & (nodes < len(mode.count))
            count, total = (np.append(each, 0.0)[np.where(known, nodes, -1)] for each in mode)
            f += (state.start + total) / (1 + count) / n_modes
        return Prediction(f, np.ones(len(f)), np.ones(len(f)))

    return Method(init, update, predict)


def _with_room(mode: Totals, n: int) -> Totals:
    spare = max(n, 2 * len(mode.count)) - len(mode.count) if n > len(mode.count) else 0
    return Totals(*(np.append(each, np.zeros(spare)) for each in mode))


def trimmed(state: NodeMeansState) -> NodeMeansState:
    modes = zip(state.modes, state.nodes, strict=True)
    return state._replace(modes=tuple(Totals(mode.count[:n], mode.total[:n]) for mode, n in modes))


TRAITS = Traits(calls=4, trim=trimmed)
GOOD = node_means(3)


@pytest.mark.parametrize("n_modes", [1, 2, 3, 4])
def test_a_method_from_outside_is_checked_in_one_line(n_modes):
    check_method(lambda: node_means(n_modes), likelihood=GAUSSIAN, n_modes=n_modes, traits=TRAITS)


# --- each breaks one promise ----------------------------------------------------------------------


def remembers_a_question(state, index, bags=None):
    """Asked about a node, it counts the node as seen."""
    answer = GOOD.predict(state, index)
    state.modes[0].count[0] += 1
    return answer


def adds_what_it_is_asked_about(state, index, bags=None):
    state.nodes[:] += 1
    return GOOD.predict(state, index)


def answers_a_batch_alike(state, index, bags=None):
    return Prediction(*(np.full(len(index), np.mean(each)) for each in GOOD.predict(state, index)))


def knows_no_minus_one(state, index, bags=None):
    """-1 is the last row, as NumPy has it."""
    return GOOD.predict(state, np.where(index == -1, state.nodes - 1, index))


def is_too_certain(state, index, bags=None):
    mean, _, noise = GOOD.predict(state, index)
    return Prediction(mean, np.zeros(len(mean)), noise)


def leaves_attributes_out(state, batch):
    return GOOD.update(state, batch._replace(bags=None))


def predicts_without_attributes(state, index, bags=None):
    return GOOD.predict(state, index)


def predicts_what_it_has_learned(state, batch):
    state, update = GOOD.update(state, batch)
    return state, update._replace(mean=GOOD.predict(state, batch.index).mean)


def learns_an_empty_batch(state, batch):
    state, update = GOOD.update(state, batch)
    return state._replace(start=state.start + 1.0), update


def scales_the_batch_it_was_given(state, batch):
    learned = GOOD.update(state, batch)
    batch.value[:] /= 2
    return learned


def learns_nan(state, batch):
    state, update = GOOD.update(state, batch)
    return state, update._replace(refused=0, rejected=0)


def checks_no_batch(state, batch):
    if (batch.index.shape[1:] == (3,)) and len(batch.value) < len(batch.index):
        batch = Batch(batch.index[: len(batch.value)], batch.value)
    return GOOD.update(state, batch)


def learns_the_mean_of_a_call(state, batch):
    flat = np.full(len(batch.value), np.mean(batch.value)) if len(batch.value) else batch.value
    return GOOD.update(state, Batch(batch.index, flat))


KEPT = []


def keeps_all_entries(state, batch):
    KEPT.append(batch.index.copy())
    return GOOD.update(state, batch)


CALLS = np.zeros(1)


def counts_its_calls_outside(state, batch):
    CALLS[0] += 1
    state, update = GOOD.update(state, batch)
    return state._replace(start=state.start + CALLS), update


def draws_from_the_clock(seed):
    return GOOD.init(int(np.random.SeedSequence().generate_state(1)[0]))


def ignores_the_seed(seed):
    return GOOD.init(0)


def keeps_a_list(seed):
    return GOOD.init(seed)._replace(nodes=[0, 0, 0])


@numba.njit
def size_of(shape):
    return len(shape)


def compiles_for_each_size(state, batch):
    size_of((0,) * min(len(batch.value), 8))  # a tuple of another length is another type
    return GOOD.update(state, batch)


BROKEN = {
    "predict_is_pure": [{"predict": remembers_a_question}, {"predict": adds_what_it_is_asked_about}],
    "predict_takes_any_number_of_entries": [{"predict": answers_a_batch_alike}],
    "unseen_node_is_answered_from_the_prior": [{"predict": knows_no_minus_one}],
    "variances_are_positive_and_finite": [{"predict": is_too_certain}],
    "no_entry_is_predicted_from_its_own_value_or_a_later_one": [{"update": predicts_what_it_has_learned}],
    "empty_batch_changes_nothing": [{"update": learns_an_empty_batch}],
    "update_reports_every_entry": [{"update": scales_the_batch_it_was_given}],
    "absurd_values_are_refused_and_counted": [{"update": learns_nan}],
    "attributes_are_refused": [
        {"update": leaves_attributes_out},
        {"predict": predicts_without_attributes},
    ],
    "malformed_batch_is_refused_and_changes_nothing": [{"update": checks_no_batch}],
    "how_calls_are_cut_does_not_matter": [{"update": learns_the_mean_of_a_call}],
    "entry_by_entry_is_one_call": [{"update": predicts_what_it_has_learned}],
    "memory_is_constant_on_a_long_stream": [{"update": keeps_all_entries}],
    "two_states_of_one_method_do_not_touch": [{"update": counts_its_calls_outside}],
    "same_seed_gives_the_same_state": [{"init": draws_from_the_clock}],
    "another_seed_gives_another_state": [{"init": ignores_the_seed}],
    "a_restored_state_goes_on_as_if_never_stopped": [{"init": keeps_a_list}],
    "a_second_batch_does_not_recompile": [{"update": compiles_for_each_size}],
    "unit_is_as_declared": [{"unit": "batch"}],
}


@pytest.mark.parametrize(
    ("promise", "change"),
    [
        pytest.param(promise, change, marks=pytest.mark.slow if promise.startswith("memory") else ())
        for promise, changes in BROKEN.items()
        for change in changes
    ],
)
def test_a_broken_promise_is_named(promise, change):
    case = Case(lambda: replace(GOOD, **change), GAUSSIAN, traits=TRAITS._replace(calls=30))
    with pytest.raises(AssertionError, match=f"^{promise}: "):
        checks_of(case)[promise]()


def test_check_method_stops_at_a_broken_promise():
    with pytest.raises(AssertionError, match=r"^empty_batch_changes_nothing: An update without entries"):
        check_method(lambda: replace(GOOD, update=learns_an_empty_batch), likelihood=GAUSSIAN, traits=TRAITS)


def test_an_error_inside_a_method_names_the_promise_too():
    def fails(state, index, bags=None):
        raise IndexError("row 99")

    case = Case(lambda: replace(GOOD, predict=fails), GAUSSIAN, traits=TRAITS)
    with pytest.raises(AssertionError, match=r"^predict_is_pure: .* IndexError: row 99") as caught:
        checks_of(case)["predict_is_pure"]()
    assert isinstance(caught.value.__cause__, IndexError)


# --- units and traits -----------------------------------------------------------------------------


def in_batches(size: int) -> Method:
    """Learns the mean of each batch in place of its values, batches of `size` counted from a call's start."""

    def update(state, batch):
        pieces = [slice(first, first + size) for first in range(0, len(batch.value), size)] or [slice(0)]
        updates = []
        for rows in pieces:
            predicted = GOOD.predict(state, batch.index[rows])
            state, said = learns_the_mean_of_a_call(state, Batch(batch.index[rows], batch.value[rows]))
            updates.append((*predicted, said.log_evidence))
        return state, Update(*np.concatenate(updates, axis=1), rejected=0)

    return replace(GOOD, update=update, unit="batch")


def test_cuts_of_a_method_that_learns_batches():
    check = "cuts_between_two_batches_change_nothing"
    checks_of(Case(lambda: in_batches(16), GAUSSIAN, unit="batch", traits=TRAITS))[check]()
    with pytest.raises(AssertionError, match=f"^{check}: .* cut at"):
        checks_of(Case(lambda: in_batches(11), GAUSSIAN, unit="batch", traits=TRAITS))[check]()
    entry_by_entry = Case(lambda: replace(GOOD, unit="batch"), GAUSSIAN, unit="batch", traits=TRAITS)
    with pytest.raises(AssertionError, match="A cut inside a batch changes nothing"):
        checks_of(entry_by_entry)[check]()


def test_a_static_method_must_not_add_to_what_it_has_learned():
    check = "a_static_method_learns_in_one_call"

    def starts_over(state, batch):
        return GOOD.update(GOOD.init(0), batch)

    def refuses(message, state, batch):
        if state.nodes.any():
            raise ValueError(message)
        return GOOD.update(state, batch)

    def run(update):
        static = Case(lambda: replace(GOOD, update=update, unit="all"), GAUSSIAN, unit="all", traits=TRAITS)
        checks_of(static)[check]()

    run(starts_over)
    run(partial(refuses, "this method is static"))
    with pytest.raises(AssertionError, match="does not say that the method is static"):
        run(partial(refuses, "no"))
    with pytest.raises(AssertionError, match="predictions of the second call"):
        run(GOOD.update)


def test_spare_rows_are_part_of_a_state_unless_it_can_be_trimmed():
    case = Case(lambda: GOOD, GAUSSIAN)
    with pytest.raises(AssertionError, match=r"^how_calls_are_cut_does_not_matter: .* The state differs"):
        checks_of(case)["how_calls_are_cut_does_not_matter"]()


@pytest.mark.parametrize("unit", ["entry", "batch", "all"])
def test_only_what_a_method_promises_is_checked(unit):
    everything = set(checks_of(Case(lambda: GOOD, GAUSSIAN, unit=unit)))
    weak = Traits(equal_starts=False, random=False, one_number=True)
    assert everything - set(checks_of(Case(lambda: GOOD, GAUSSIAN, unit=unit, traits=weak))) == {
        "node_that_no_entry_has_touched_is_unseen",
        "renaming_nodes_commutes",
        "another_seed_gives_another_state",
        "malformed_batch_is_refused_and_changes_nothing",
    }
    of_streams = {"memory_is_constant_on_a_long_stream", "a_second_batch_does_not_recompile"}
    assert (of_streams <= everything) == (unit != "all")


def test_compilations_are_counted():
    @numba.njit
    def doubled(x):
        return 2 * x

    globals()["_doubled"] = doubled
    before = compilations(GOOD)
    assert before > 0
    doubled(1)
    doubled(1.0)
    assert compilations(GOOD) == before + 2


def test_streams_suit_the_likelihood():
    for likelihood in LIKELIHOODS.values():
        case = Case(lambda: GOOD, likelihood, n_modes=2)
        batch = case.stream(200)
        assert likelihood.allows(batch.value).all()
        assert batch.index.max(axis=0).tolist() == [5, 4]
        assert len(np.unique(batch.value)) > 1
