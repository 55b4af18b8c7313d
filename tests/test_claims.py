"""Claims: made runs with known answers; every verdict turns when the rows turn."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from spidertensor.study.report import behaviour, markdown, page
from spidertensor.study.report import runs as r
from spidertensor.study.report.claims import claims
from spidertensor.study.rows import read

CONTINUOUS = ("movielens-1m", "acc", "movielens-100k")


def row(
    method, data, score=None, *, experiment="grid", protocol="held-out", rank=8, batch_size=256, seed=0,
    curve=(), seconds=1.0, rejected=0, weights=None, error=None, **settings,
):  # fmt: skip
    """A row as `spider experiment` writes it; curve: scores at even distances over 1,000 entries."""
    scores = {
        "paper": {
            "metric": "rmse" if data in CONTINUOUS else "auc", "score": score, "n_entries": 1000,
            "seconds": seconds, "rejected": rejected,
        }
    }  # fmt: skip
    points = [
        {"n_entries": 1000 * n // len(curve), "seconds": seconds * n / len(curve), "paper": each}
        for n, each in enumerate(curve, 1)
    ]
    asked = {
        "method": method, "data": data, "protocol": protocol, "rank": rank, "batch_size": batch_size,
        "seed": seed, "at": 1,
    }  # fmt: skip
    return {
        "experiment": experiment, "settings": asked | settings,
        "scores": None if error or protocol == "weights" else scores, "curve": points, "weights": weights,
        "error": error,
    }  # fmt: skip


def claim(rows, start):
    (found,) = [each for each in claims(r.runs(rows), r.failed(rows)) if each.text.startswith(start)]
    return found


def duel(start, winner, loser, data="acc", **how):
    """The verdict when `winner` is better, and when it is worse; lower is better on acc and movielens-1m."""
    good, bad = (0.3, 0.4) if data in CONTINUOUS else (0.9, 0.8)
    holds = claim([row(winner, data, good, **how), row(loser, data, bad, **how)], start)
    fails = claim([row(winner, data, bad, **how), row(loser, data, good, **how)], start)
    assert (holds.status, fails.status) == ("holds", "does not hold")
    return holds, fails


def test_without_rows_nothing_is_claimed():
    found = claims([])
    assert len(found) == 13
    assert {each.verdict for each in found} == {"not run"}


@pytest.mark.parametrize("data", ["acc", "anime"])
def test_better_than_every_competitor(data):
    _, fails = duel("SPIDER (ReLU or tanh) is better", "spider-paper", "cp-wopt", data)
    assert fails.notes == ["against CP-WOPT: 0 wins, 0 ties, 1 loss"]
    duel("Not in the paper: spidertensor's default", "spider", "post", data)
    duel("Not in the paper: SPIDER (ReLU or tanh) clears", "spider-paper-tanh", "biases", data)


def test_in_part_says_where_not_and_by_which_numbers():
    rows = [
        row("spider-paper", "acc", 0.4), row("cp-wopt", "acc", 0.3), row("post", "acc", 0.5),
        row("spider-paper", "anime", 0.9), row("post", "anime", 0.8),
    ]  # fmt: skip
    found = claim(rows, "SPIDER (ReLU or tanh) is better")
    assert found.verdict == "holds in part: 1 win, 0 ties, 1 loss in 2 settings; not on acc (1 of 1)"
    (failed,) = [check for check in found.checks if check.outcome == "loss"]
    assert failed.where == "acc, rank 8, batch 256"
    assert failed.numbers == "SPIDER-ReLU 0.4000 (1 seed), CP-WOPT 0.3000 (1 seed)"
    assert found.notes == [
        "against POST: 2 wins, 0 ties, 0 losses",
        "against CP-WOPT: 0 wins, 0 ties, 1 loss",
    ]


def test_a_score_that_is_not_a_number_loses():
    for broken in (None, math.nan):
        rows = [row("spider-paper", "acc", 0.4), row("post", "acc", broken)]
        assert claim(rows, "SPIDER (ReLU or tanh) is better").status == "holds"
        rows = [row("spider-paper", "acc", broken), row("post", "acc", 0.4)]
        assert claim(rows, "SPIDER (ReLU or tanh) is better").status == "does not hold"


def test_a_competitor_without_batches_meets_every_batch_size():
    rows = [row("spider-paper", "acc", 0.4, batch_size=size) for size in (64, 256)]
    rows.append(row("cp-wopt", "acc", 0.3))
    found = claim(rows, "SPIDER (ReLU or tanh) is better")
    assert found.verdict == "does not hold: 0 wins, 0 ties, 2 losses in 2 settings"


def seeds(method, scores, data="acc", **how):
    return [row(method, data, score, seed=seed, **how) for seed, score in enumerate(scores)]


@pytest.mark.parametrize(
    ("ours", "theirs", "outcome"),
    [
        ([0.40, 0.42], [0.41, 0.43], "tie"),  # 0.01 apart, deviation 0.014
        ([0.40, 0.41], [0.42, 0.43], "win"),
        ([0.42, 0.43], [0.40, 0.41], "loss"),
        ([0.40], [0.401, 0.409], "win"),
        ([0.405], [0.40, 0.411], "tie"),  # one seed: how much the other varies has to do
        ([0.40], [0.401], "win"),  # nothing is known of how much they vary
        ([0.40, 0.41], [20.0, 180.0], "win"),  # varies a lot, but all of it is far away
        ([math.nan, 0.4], [math.nan, 0.4], "tie"),
        ([0.40, 0.41], [0.40, math.nan], "win"),
    ],
)
def test_a_difference_within_the_deviation_is_a_tie(ours, theirs, outcome):
    (check,) = claim(seeds("spider-paper", ours) + seeds("post", theirs), "SPIDER (ReLU or tanh)").checks
    assert check.outcome == outcome


def test_ties_alone_leave_a_claim_undecided():
    rows = seeds("spider-paper", [0.40, 0.42]) + seeds("spider-paper-tanh", [0.41, 0.43])
    assert claim(rows, "ReLU is better").verdict == "undecided: 0 wins, 1 tie, 0 losses in 1 setting"


def test_claims_are_about_the_data_sets_of_the_paper():
    rows = [row("spider-paper", "movielens-100k", 0.9), row("post", "movielens-100k", 1.0)]
    assert claim(rows, "SPIDER (ReLU or tanh) is better").verdict == "not run"


def test_failed_rows_and_other_experiments_do_not_count():
    rows = [
        row("spider-paper", "acc", 0.4), row("post", "acc", error="ValueError: no"),
        row("post", "acc", 0.1, experiment="time"), row("post", "acc", 0.1, experiment="approximations"),
        row("post", "acc", 0.1, experiment="approximations-tanh"), row("first-order", "acc", 0.1),
        row("post", "acc", 0.1, experiment="tuning"),
    ]  # fmt: skip
    assert claim(rows, "SPIDER (ReLU or tanh) is better").verdict == "not run"


def test_relu_better_than_tanh():
    duel("ReLU is better", "spider-paper", "spider-paper-tanh", "dblp")


def test_static_worse_than_post_on_two_data_sets_only():
    duel("CP-WOPT is worse", "post", "cp-wopt")
    assert (
        claim([row("post", "dblp", 0.7), row("cp-wopt", "dblp", 0.9)], "CP-WOPT is worse").status == "not run"
    )


def test_often_is_at_least_half():
    rows = [row("post", "acc", 0.4), row("svb-gptf", "acc", 0.5), row("ss-gptf", "acc", 0.3)]
    assert (
        claim(rows, "The GP methods").verdict
        == "holds: 1 win, 0 ties, 1 loss in 2 settings; not on acc (1 of 2)"
    )
    rows += [row("post", "dblp", 0.4), row("svb-gptf", "dblp", 0.5)]
    assert claim(rows, "The GP methods").status == "holds in part"


@pytest.mark.parametrize(("auc", "status"), [(0.52, "holds"), (0.47, "holds"), (0.7, "does not hold")])
def test_near_chance(auc, status):
    assert claim([row("svb-dtf", "anime", auc)], "SVB-DTF is near").status == status


def test_roughness_of_a_line_is_nothing():
    assert behaviour.roughness([1, 2, 3, 4]) == 0
    assert behaviour.roughness([0, 1, 0, 1]) == 2
    assert math.isnan(behaviour.roughness([1, 2]))


def test_smoother():
    smooth, rough = [0.5 - 0.001 * n for n in range(20)], [0.5 + 0.01 * (n % 2) for n in range(20)]
    rows = [row("spider-paper", "acc", 0.4, curve=smooth), row("svb-dtf", "acc", 0.4, curve=rough)]
    assert claim(rows, "Running curves").status == "holds"
    rows = [row("spider-paper", "acc", 0.4, curve=rough), row("svb-dtf", "acc", 0.4, curve=smooth)]
    assert claim(rows, "Running curves").status == "does not hold"
    rows = [row("spider-paper", "acc", 0.4, curve=rough), row("svb-dtf", "acc", 0.4, curve=smooth[:10])]
    assert claim(rows, "Running curves").status == "not run"  # other distances between the points


@pytest.mark.parametrize(
    ("data", "rank", "status"),
    [("anime", 8, "holds"), ("anime", 3, "does not hold"), ("dblp", 8, "does not hold")],
)
def test_best_on_the_fly_but_early_on_some(data, rank, status):
    rows = [
        row("spider-paper", data, 0.9, rank=rank, curve=[0.5] * 10 + [0.9] * 10),
        row("post", data, 0.7, rank=rank, curve=[0.7] * 20),
    ]
    found = claim(rows, "Best on the fly")
    assert found.status == status
    assert found.checks[0].numbers == (
        "at 20 points 10 wins, 0 ties, 10 losses (first half 0 wins, 0 ties, 10 losses; second half 10 wins, "
        "0 ties, 0 losses)"
    )


def test_on_the_fly_ties_count_as_ties():
    def curves(method, scores):
        return [row(method, "dblp", each, seed=seed, curve=[each] * 20) for seed, each in enumerate(scores)]

    (check,) = claim(curves("spider-paper", [0.8, 0.9]) + curves("post", [0.82, 0.84]), "Best on").checks
    assert check.outcome == "tie"


def test_pruned():
    def weights(inclusion):
        return [{"inclusion": [[inclusion, 0.9]], "mean": [[0.1, 0.2]]}]

    rows = [row("spider-paper", "acc", protocol="weights", weights=weights(0.1))]
    found = claim(rows, "Redundant")
    assert found.status == "holds"
    assert found.checks[0].numbers == (
        "50% pruned (by layer 50%); 50% below 0.5; 0% within 0.05 of 0.5, the prior"
    )
    rows = [row("spider-paper", "acc", protocol="weights", weights=weights(0.8))]
    assert claim(rows, "Redundant").status == "does not hold"


def test_cost():
    def timed(size, seconds, curve=(0.4, 0.4)):
        return row(
            "spider-paper", "acc", 0.4, experiment="time", batch_size=size, seconds=seconds, curve=curve
        )

    found = claim([timed(64, 1.0), timed(256, 1.0)], "Cost is linear")
    assert found.verdict == "holds: 2 of 2 checks"
    assert found.checks[0].numbers == "power 1.00 (1e+03 µs per entry at 64, 1e+03 µs per entry at 256)"
    fixed = claim([timed(64, 1.0), timed(256, 0.25)], "Cost is linear")  # a batch costs the same at any size
    assert fixed.verdict == "holds: 2 of 2 checks"
    quadratic = claim([timed(64, 1.0), timed(256, 4.0)], "Cost is linear")
    assert [check.outcome for check in quadratic.checks] == ["loss", "win"]
    slowing = timed(256, 4.0)
    slowing["curve"][0]["seconds"] = 1.0  # of 4, after half of the entries
    found = claim([slowing], "Cost is linear")
    assert found.status == "does not hold"
    assert found.checks[0].numbers == "second half 3.00 times the first half"


def approximation(method, scores, rejected=(0, 0), densities=None, experiment="approximations", **settings):
    """Rows with one score, number of rejected updates and log density for each seed."""
    rows = []
    for seed, (score, count) in enumerate(zip(scores, rejected, strict=True)):
        each = row(
            method, "movielens-100k", score, seed=seed, experiment=experiment, rejected=count, **settings
        )
        if densities:
            each["scores"]["paper"]["log_density"] = densities[seed]
        rows.append(each)
    return rows


FIRST = approximation("first-order", [0.90, 0.91])


def test_second_order_unstable_and_no_better():
    text = "A second-order"
    assert claim(FIRST + approximation("second-order", [0.92, 0.93], (7, 8)), text).status == "holds"
    assert claim(FIRST + approximation("second-order", [0.92, math.nan]), text).status == "holds"
    assert claim(FIRST + approximation("second-order", [0.92, 0.93]), text).status == "holds in part"
    assert claim(FIRST + approximation("second-order", [0.80, 0.81]), text).status == "does not hold"


def unstable(rows):
    (check,) = [each for each in claim(rows, "A second-order").checks if each.where.endswith("unstable")]
    return check


def test_unstable_is_more_than_seeds_differ():
    first = approximation("first-order", [0.90, 0.91], (15, 25))
    assert unstable(first + approximation("second-order", [0.92, 0.93], (17, 27))).outcome == "loss"
    assert unstable(first + approximation("second-order", [0.92, 0.93], (40, 50))).outcome == "win"
    one_seed = first[:1] + approximation("second-order", [0.92], (20,))
    assert unstable(one_seed).outcome == "loss"


def test_a_run_that_crashed_is_unstable():
    second = approximation("second-order", [0.92, 0.93])
    second[1] |= {"scores": None, "error": "FloatingPointError: overflow"}
    assert unstable(FIRST + second).outcome == "win"
    assert "runs that crashed: 1" in unstable(FIRST + second).numbers
    for each in second:
        each |= {"scores": None, "error": "FloatingPointError: overflow"}
    assert [check.outcome for check in claim(FIRST + second, "A second-order").checks] == ["win"]


def test_quadrature_no_better():
    text = "A better approximation"
    assert claim(FIRST + approximation("noise-quadrature", [0.90, 0.907]), text).status == "holds"
    assert claim(FIRST + approximation("noise-quadrature", [0.80, 0.81]), text).status == "does not hold"


def test_score_and_log_density_are_judged_each_on_its_own_and_for_each_activation():
    first, other = {"densities": [-1.0, -1.1]}, {"densities": [-0.5, -0.6]}
    rows = []
    for experiment, activation in (("approximations", "relu"), ("approximations-tanh", "tanh")):
        how = {"experiment": experiment, "activation": activation}
        rows += approximation("first-order", [0.90, 0.91], **how, **first)
        rows += approximation("noise-quadrature", [0.90, 0.92], **how, **other)
    found = claim(rows, "A better approximation")
    assert found.verdict == "holds in part: 2 of 4 checks; not on movielens-100k (2 of 4)"
    score = (
        "better in 0, tied in 1, worse in 0 of 1 settings; better in 0 of 2 pairs of runs with the same seed"
    )
    density = score.replace("in 0, tied in 1", "in 1, tied in 0").replace(
        "better in 0 of 2", "better in 2 of 2"
    )
    assert found.notes == [
        f"relu, by score: {score}", f"tanh, by score: {score}",
        f"relu, by log density: {density}", f"tanh, by log density: {density}",
    ]  # fmt: skip


# Cells


def test_mean_deviation_and_number_of_seeds():
    found = r.runs([row("post", "acc", score, seed=seed) for seed, score in enumerate([0.3, 0.4, 0.5])])
    cell = r.cell(r.at(found, "POST", "acc", 8, 256), "paper")
    assert cell == pytest.approx((0.4, 0.1, 3, 0.3, 0.5))
    assert str(cell) == "0.4000 ± 0.1000 (3 seeds)"


def test_a_seed_counts_once_and_the_later_row_stands():
    found = r.runs([row("post", "acc", 0.3), row("post", "acc", 0.5, experiment="again")])
    assert str(r.cell(r.at(found, "POST", "acc", 8, 256), "paper")) == "0.5000 (1 seed)"


def test_no_mean_over_different_settings():
    rows = [row("svb-dtf", "acc", 0.3, epochs=20), row("svb-dtf", "acc", 0.5, epochs=100, seed=1)]
    assert r.names(r.runs(rows)) == ["SVB-DTF, epochs 100", "SVB-DTF, epochs 20"]
    rows = [row("svb-dtf", "acc", 0.3, entries=None), row("svb-dtf", "acc", 0.5, entries=10, seed=1)]
    assert r.names(r.runs(rows)) == ["SVB-DTF, entries 10", "SVB-DTF, entries all"]


def test_settings_tuned_for_each_data_set_are_one_method():
    rows = [row("svb-dtf", "acc", 0.3, learning_rate=0.1), row("svb-dtf", "dblp", 0.9, learning_rate=0.2)]
    assert r.names(r.runs(rows)) == ["SVB-DTF"]


def test_the_claims_in_the_docs_are_what_our_rows_say():
    """`spider report results` has written them: `cp report/claims.md docs/`."""
    root = Path(__file__).parents[1]
    rows = read([root / "results"])
    said = markdown.claims(page.CLAIMS[1], page.JUDGED, [], claims(r.runs(rows), r.failed(rows)))
    assert (root / "docs" / "claims.md").read_text(encoding="utf-8") == said
