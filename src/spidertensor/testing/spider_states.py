"""What a method with SPIDER's states promises beyond the rest; there is nothing to check for other states."""

from __future__ import annotations

import copy

import numpy as np

from spidertensor.method import Batch
from spidertensor.spider import posterior
from spidertensor.spider.posterior import Gaussian, State
from spidertensor.testing.case import Case, require, require_equal
from spidertensor.testing.predicting import renamed
from spidertensor.testing.states import members_of, with_members


def only_the_nodes_of_the_batch_move(case: Case) -> None:
    """An update moves the factors of all nodes in its batch, and of no other node."""
    method, state = case.learned()
    if not members_of(state):
        return
    before = copy.deepcopy([posterior.trim(each) for each in members_of(state)])
    rows = np.array([np.arange(1, case.n_modes + 1), np.arange(4, 4 - 2 * case.n_modes, -2)])
    batch = Batch(rows % case.nodes, np.array(case.likelihood.levels[:2] or [1.0, 0.0]))
    state, _ = method.update(state, batch)
    for now, then in zip(members_of(state), before, strict=True):
        for mode, (new, old) in enumerate(
            zip(posterior.trim(now).posterior.factors, then.posterior.factors, strict=True)
        ):
            moved = np.zeros(case.nodes[mode], bool)
            moved[batch.index[:, mode]] = True
            for a, b in zip(new, old, strict=True):
                np.testing.assert_array_equal(a[~moved], b[~moved])
            require((new.mean[moved] != old.mean[moved]).any(axis=1).all(), "A node of the batch stays.")


def renaming_nodes_with_their_starts_commutes(case: Case) -> None:
    """Where a row starts at random its start can be renamed with it, and nothing else changes."""
    method, batch = case.build(), case.stream()
    last_rows = np.array([[d - 1 for d in case.nodes]])
    state, _ = method.update(method.init(0), Batch(last_rows, np.array([1.0])))
    if not members_of(state):
        return
    rng = np.random.default_rng(3)
    names = [rng.permutation(d) for d in case.nodes]
    trimmed = [posterior.trim(each) for each in members_of(state)]
    state = with_members(state, trimmed)
    other = copy.deepcopy(with_members(state, [_with_renamed_rows(each, names) for each in trimmed]))
    state, update = method.update(state, batch)
    other, other_update = method.update(other, Batch(renamed(batch.index, names), batch.value))
    require_equal(other_update, update, "updates")
    index = case.everything()
    require_equal(method.predict(other, renamed(index, names)), method.predict(state, index), "predictions")


def _with_renamed_rows(member: State, names: list[np.ndarray]) -> State:
    def moved(modes: tuple[Gaussian, ...]) -> tuple[Gaussian, ...]:
        """Rows of each mode under their new names; modes is () where a method has nothing of the kind."""
        found = []
        for gaussian, new in zip(modes, names, strict=False):
            found.append(Gaussian(np.empty_like(gaussian.mean), np.empty_like(gaussian.var)))
            for have, want in zip(gaussian, found[-1], strict=True):
                want[new] = have
        return tuple(found)

    post = member.posterior
    return member._replace(
        posterior=post._replace(factors=moved(post.factors), log_noise=moved(post.log_noise))
    )
