"""The paired t test and Holm's correction, against closed forms and a textbook's figures."""

from __future__ import annotations

import math

import pytest

from spidertensor_study.report.paired import holm, paired
from spidertensor_study.report.verdicts import Duel, judge


def judged(ours, theirs):
    """Seeds, difference and p."""
    return paired(ours, theirs)[:3]


def losses(*values):
    return dict(enumerate(values))


def test_three_seeds():
    """Differences -1, -2, -3: t = -2 sqrt(3), and with two degrees of freedom p = 1 - |t| / sqrt(t^2 + 2)."""
    found = paired(losses(1, 2, 3), losses(2, 4, 6))
    assert found[:3] == pytest.approx((3, -2, 1 - math.sqrt(12 / 14)))
    assert judged(losses(2, 4, 6), losses(1, 2, 3)) == pytest.approx((3, 2, found.p))
    # the 2.5 % point of two degrees of freedom is 4.303, the standard error 1 / sqrt(3)
    assert found.error == pytest.approx(4.302653 / math.sqrt(3))
    assert (found.better, found.worse) == (3, 0)
    assert found.always_better
    assert not found.always_worse


def test_five_seeds():
    """The 5 % point of four degrees of freedom is 2.776."""
    differences = [-2, -1, 0, 1, 2]  # deviation sqrt(2.5): the mean is that many standard errors
    mean = 2.776445 * math.sqrt(2.5 / 5)
    found = paired(losses(*(mean + each for each in differences)), losses(0, 0, 0, 0, 0))
    assert found.p == pytest.approx(0.05, abs=1e-6)


def test_what_varies_with_the_split_is_not_in_the_difference():
    """Losses that vary by 10 from seed to seed, and differ by 0.1 or so within each."""
    found = paired(losses(10, 20, 30), losses(10.1, 20.11, 30.09))
    assert found.p < 0.01


def test_only_shared_seeds_count():
    first = {0: 1.0, 1: 2.0, 2: 3.0, 5: 99.0}
    second = {2: 6.0, 1: 4.0, 0: 2.0, 7: -99.0}
    assert paired(first, second) == paired(losses(1, 2, 3), losses(2, 4, 6))


@pytest.mark.parametrize("n", [0, 1, 2])
def test_fewer_than_three_are_no_test(n):
    found = paired(losses(*range(n)), losses(5, 6, 7))
    assert found.seeds == n
    assert math.isnan(found.p)


def test_differences_that_are_all_the_same():
    assert judged(losses(1, 2, 3), losses(1, 2, 3)) == (3, 0, 1)
    assert judged(losses(1, 2, 3), losses(2, 3, 4)) == (3, -1, 0)


def test_a_failure_loses_and_two_are_not_judged():
    good, bad = losses(1, 2, 3), losses(1, math.inf, 3)
    assert judged(good, bad) == (3, -math.inf, 0)
    assert judged(bad, good) == (3, math.inf, 0)
    assert math.isnan(paired(bad, losses(math.inf, 2, 3)).p)
    assert math.isnan(paired({0: 1.0}, {0: math.inf}).p)  # one seed is not judged, failed or not
    assert judged(good, {**good, 9: math.inf}) == (3, 0, 1)  # seed 9 is not shared


def test_holm():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1, 1]
    assert holm([]) == []


def test_what_was_not_judged_does_not_count_in_the_correction():
    first, missing, last = holm([0.02, math.nan, 0.04])
    assert (first, last) == (0.04, 0.04)
    assert math.isnan(missing)


def duels(n):
    """Each with p = 0.03: t = 5.643 with two degrees of freedom."""
    differences = [0.01 * (5.643 / math.sqrt(3) + each) for each in (-1, 0, 1)]
    test = paired(losses(0, 0, 0), losses(*differences))
    assert test.p == pytest.approx(0.03, abs=1e-4)
    return [Duel("acc", f"place {place}", "ours", "theirs", test, "numbers") for place in range(n)]


def test_the_comparisons_of_a_claim_are_corrected_together():
    (alone,) = judge(duels(1))
    assert (alone.outcome, alone.numbers) == ("win", "numbers, p = 0.03")
    assert [(check.outcome, check.numbers) for check in judge(duels(2))] == [
        ("undecided", "numbers, p = 0.06")
    ] * 2
