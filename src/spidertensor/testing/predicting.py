"""What `predict` promises."""

from __future__ import annotations

import numpy as np

from spidertensor.method import Batch
from spidertensor.testing.case import Case, require, require_equal
from spidertensor.testing.learning import noise_fits
from spidertensor.testing.states import leaves, members_of

FAR = 10**9  # a row that no state has


def predict_is_pure(case: Case) -> None:
    """predict changes no bit of the state, adds no node, and answers the same question the same way."""
    method, state = case.learned()
    questions = np.zeros((5, case.n_modes), np.int64)
    questions[1] = questions[3] = -1
    questions[1, 1:] = 2
    questions[2, 0], questions[2, -1], questions[4, 0] = 5, 99, FAR
    before, kept = [leaf.tobytes() for leaf in leaves(state)], questions.copy()
    first = method.predict(state, questions)
    second = method.predict(state, questions)
    require([leaf.tobytes() for leaf in leaves(state)] == before, "The state has changed.")
    require_equal(questions, kept, "the index, after predict")
    require_equal(first, second, "two predictions")
    for member in members_of(state):
        require(member.counts.nodes.tolist() == list(case.nodes), "Nodes were added.")


def predict_takes_any_number_of_entries(case: Case) -> None:
    """An entry is answered alike among many, alone, in another order, and with an index of another type."""
    method, state = case.learned()
    index = case.everything()
    whole = method.predict(state, index)
    require([array.shape for array in whole] == [(len(index),)] * 3, "The arrays are not (n,).")
    none = [array.shape for array in method.predict(state, index[:0])]
    require(none == [(0,)] * 3, "The arrays for no entries are not (0,).")
    one = slice(len(index) // 3, len(index) // 3 + 1)
    require_equal(method.predict(state, index[one]), [array[one] for array in whole], "one entry")
    backwards = index.astype(np.int32)[::-1]
    require_equal(method.predict(state, backwards), [array[::-1] for array in whole], "int32, backwards")


def variances_are_positive_and_finite(case: Case) -> None:
    """Predictions and states are finite, variances positive, after a longer stream too."""
    method, state = case.learned(300)
    prediction = method.predict(state, case.everything())
    require(np.isfinite(np.array(prediction)).all(), "A prediction is not finite.")
    require((prediction.var > 0).all(), "A variance is not positive.")
    require(noise_fits(case, prediction.noise), "The noise must be positive, and 0 for 0/1 values.")
    require(all(np.isfinite(leaf).all() for leaf in leaves(state)), "An array of the state is not finite.")
    for member in members_of(state):
        for gaussian in member.posterior.factors + member.posterior.weights:
            require((gaussian.var > 0).all(), "A variance in the state is not positive.")


def unseen_node_is_answered_from_the_prior(case: Case) -> None:
    """-1, the next row and a far one are the same unseen node; a fresh state knows no other kind."""
    method, state = case.learned()
    for mode, d in enumerate(case.nodes):
        index = np.tile(np.arange(1, case.n_modes + 1) % case.nodes, (4, 1))
        index[:, mode] = [-1, d, d + 7, FAR]
        for array in method.predict(state, index):
            require(np.ptp(array) == 0, f"Unseen nodes of mode {mode} get different answers: {array}.")
            require(np.isfinite(array).all(), "An answer is not finite.")
    fresh = method.predict(method.init(0), case.everything())
    require(all(np.ptp(array) == 0 for array in fresh), "A fresh state gives different answers.")
    require((fresh.var > 0).all(), "A variance of a fresh state is not positive.")


def node_that_no_entry_has_touched_is_unseen(case: Case) -> None:
    """A row that exists only because a later one does is still at its prior."""
    method, (index, value) = case.build(), case.stream()[:2]
    last = np.zeros(case.n_modes, np.int64)
    last[0] = 9
    state, _ = method.update(method.init(0), Batch(np.vstack([index, last]), np.append(value, 1.0)))
    untouched, unseen = index[:2].copy(), index[:2].copy()
    untouched[:, 0], unseen[:, 0] = [7, 8], -1
    require_equal(method.predict(state, untouched), method.predict(state, unseen), "untouched and unseen")


def renaming_nodes_commutes(case: Case) -> None:
    """Rows are names: nodes that start equal can be swapped and nothing else changes."""
    rng = np.random.default_rng(3)
    names = [rng.permutation(d) for d in case.nodes]
    batch = case.stream()
    method, state = case.learned()
    other, update = method.update(method.init(0), Batch(renamed(batch.index, names), batch.value))
    require_equal(update, method.update(method.init(0), batch)[1], "updates")
    index = case.everything()
    require_equal(method.predict(other, renamed(index, names)), method.predict(state, index), "predictions")


def renamed(index: np.ndarray, names: list[np.ndarray]) -> np.ndarray:
    """The index with each row replaced by its new name."""
    return np.stack([new[rows] for new, rows in zip(names, index.T, strict=True)], axis=1)
