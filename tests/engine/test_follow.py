"""Following the level and the scale of the values: the kernel equals the oracle through every decision, how
calls are cut changes nothing, and what a decision promises is exact."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from cases import assert_same_state, learn_in_pieces, stream
from following import CASE, CASES, CHANGES, PRIOR, begin, by_the_oracle, case_of, changed, grown
from spidertensor.method import Batch
from spidertensor.spider.follow import DECIDE, WINDOW_ENTRIES, follow


@pytest.mark.parametrize(
    ("name", "change"),
    [*(("hybrid", change) for change in CHANGES), *((name, "scale") for name in CASES if name != "hybrid")],
)
def test_equals_the_oracle(name, change):
    case = case_of(name, change)
    batch = changed(case, change)
    state = grown(case, begin(case, change))
    wanted, said = by_the_oracle(name, change)
    state, update, _ = learn_in_pieces(
        case.method(WINDOW_ENTRIES, PRIOR), state, batch, (0, 300, 511, 512, 513, 800)
    )
    assert state.stream.followed.sum() == 1
    np.testing.assert_allclose(update, said, rtol=1e-6, atol=1e-7)
    assert_same_state(case, state, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("change", CHANGES)
def test_cuts_change_nothing(change):
    case = case_of("hybrid", change)
    batch = changed(case, change)
    whole, _, _ = learn_in_pieces(case.method(WINDOW_ENTRIES, PRIOR), begin(case, change), batch, (0,))
    cut, _, _ = learn_in_pieces(
        case.method(WINDOW_ENTRIES, PRIOR), begin(case, change), batch, (0, 1, 255, 256, 512, 768, 769, 899)
    )
    assert whole.stream.followed.sum() == 1
    for one, other in zip(naive_arrays(whole), naive_arrays(cut), strict=True):
        np.testing.assert_array_equal(one, other)


def naive_arrays(tree):
    return [leaf for part in tree for leaf in naive_arrays(part)] if isinstance(tree, tuple) else [tree]


@pytest.mark.parametrize(
    ("level", "scale", "count"),
    [(40.0, 1.0, 0), (0.0, 1e-3, 1), (-7.0, 50.0, 1)],
    ids=["level", "less", "more"],
)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_predictions_follow_the_values(case, level, scale, count):
    """What happens to the values happens to the predictions."""
    state, _, _ = learn_in_pieces(case.method(WINDOW_ENTRIES, PRIOR), begin(case), stream(case, 600))
    index = stream(case, 50, seed=2).index
    before = case.method(prior=PRIOR).predict(state, index).mean
    state.stream.watching[()] = DECIDE
    f_mean, f_var = 0.25, 0.64  # of the predictions in the window; y = level + scale f
    moments = (level + scale * f_mean, f_mean, scale**2 * f_var, f_var, scale * f_var)
    state.stream.window[:] = (WINDOW_ENTRIES, 100 * WINDOW_ENTRIES, *moments)
    follow(state, case.network, PRIOR)
    after = case.method(prior=PRIOR).predict(state, index).mean
    assert state.stream.followed[count] == 1
    unit = 1.0 if count == 0 else np.sqrt(f_var)  # new units have the spread of the values
    wanted = level + scale * f_mean + scale * unit * (before - f_mean)
    np.testing.assert_allclose(after, wanted, rtol=1e-6, atol=1e-6 * abs(level))


def test_a_change_that_has_not_lasted_is_left_alone():
    """The watched window is as the stream was: spread as before, residuals as predicted."""
    state, _, _ = learn_in_pieces(CASE.method(WINDOW_ENTRIES, PRIOR), begin(CASE), stream(CASE, 600))
    before = naive_arrays(copy.deepcopy(state.posterior))
    state.stream.watching[()] = DECIDE
    state.stream.window[:] = (WINDOW_ENTRIES, 1.1 * WINDOW_ENTRIES, 0.1, 0.0, 1.0, 0.5, 0.0)
    follow(state, CASE.network, PRIOR)
    assert (int(state.stream.watching), state.stream.followed.sum()) == (0, 0)
    for one, other in zip(before, naive_arrays(state.posterior), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("mean", "var"), [(3.0, 1e-30), (3.0, 0.0), (0.0, 1e220), (0.0, 1e-20)])
def test_nothing_is_followed_beyond_all_numbers(mean, var):
    """Equal values, values that differ by rounding, and a scale whose square is no number."""
    state, _, _ = learn_in_pieces(CASE.method(WINDOW_ENTRIES, PRIOR), begin(CASE), stream(CASE, 600))
    state.stream.watching[()] = DECIDE
    state.stream.window[:] = (WINDOW_ENTRIES, 100 * WINDOW_ENTRIES, mean, 0.0, var, 0.5, 0.0)
    follow(state, CASE.network, PRIOR)
    assert state.stream.followed.sum() == 0
    assert float(state.stream.scale) == 1


def test_a_stream_without_change_is_left_alone():
    state, _, _ = learn_in_pieces(CASE.method(WINDOW_ENTRIES, PRIOR), begin(CASE), stream(CASE, 5000))
    assert not state.stream.followed.any()
    assert (float(state.stream.shift), float(state.stream.scale)) == (0.0, 1.0)


def test_windows_end_where_the_prior_is_refined():
    """With refinements every 100 entries a window has 300: the first refinement at which it has 256."""
    batch = changed(CASE, "level", at=310)
    state, _, _ = learn_in_pieces(
        CASE.method(100, PRIOR), begin(CASE), Batch(batch.index[:900], batch.value[:900])
    )
    assert state.stream.followed.sum() == 1
    state, _, _ = learn_in_pieces(
        CASE.method(100, PRIOR), begin(CASE), Batch(batch.index[:899], batch.value[:899])
    )
    assert state.stream.followed.sum() == 0
