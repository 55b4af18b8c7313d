"""Claims: made runs with known answers; every verdict turns when the rows turn."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import scipy.stats

from spidertensor_study.report import behaviour, markdown, page
from spidertensor_study.report import runs as r
from spidertensor_study.report.claims import claims
from spidertensor_study.rows import read

CONTINUOUS = ("movielens-1m", "acc", "movielens-100k")


def row(
    method, data, score=None, *, experiment="grid", protocol="held-out", rank=8, batch_size=256, seed=0,
    curve=(), seconds=1.0, rejected=0, weights=None, error=None, **settings,
):  # fmt: skip
    """A row as `spider-study experiment` writes it; curve: scores at even distances over 1,000 entries."""
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


WOBBLE = (0.0, 0.001, 0.003)  # of the seeds, so that differences between methods vary a little
STREAMING = "SPIDER-ReLU is better than every streaming"
STATIC = "SPIDER-ReLU is better than every static"


def seeds(method, scores, data="acc", **how):
    return [row(method, data, score, seed=seed, **how) for seed, score in enumerate(scores)]


def clearly(method, data, score, **how):
    """Three seeds with nearly the same score; no two methods wobble alike."""
    size = 1 + list(r.LABELS).index(method) / 10
    return seeds(method, [score + size * each for each in WOBBLE], data, **how)


def duel(start, winner, loser, data="acc", **how):
    """The verdict when `winner` is better, and when it is worse; lower is better on acc and movielens-1m."""
    good, bad = (0.3, 0.4) if data in CONTINUOUS else (0.9, 0.8)
    holds = claim(clearly(winner, data, good, **how) + clearly(loser, data, bad, **how), start)
    fails = claim(clearly(winner, data, bad, **how) + clearly(loser, data, good, **how), start)
    assert (holds.status, fails.status) == ("holds", "does not hold")
    return holds, fails


def test_without_rows_nothing_is_claimed():
    found = claims([])
    assert len(found) == 22
    assert {each.verdict for each in found} == {"not run"}
    assert {each.sentence for each in found} == {"Nothing was run for it."}


@pytest.mark.parametrize("data", ["acc", "anime"])
def test_better_than_every_competitor(data):
    holds, fails = duel(STATIC, "spider-paper", "cp-wopt", data)
    assert holds.sentence == "Better in 1 of 1 comparison."
    (note,) = fails.notes
    assert note.startswith("SPIDER-ReLU against CP-WOPT, 100 iterations: 0 wins, 0 undecided, 1 loss; for ")
    assert fails.sentence == (
        f"SPIDER-ReLU is worse than CP-WOPT, 100 iterations on {data}. "
        "Better in none of 1 comparison, worse in 1."
    )
    duel(STREAMING, "spider-paper", "svb-dtf", data)
    duel("SPIDER-tanh is better than every streaming", "spider-paper-tanh", "post", data)
    duel("SPIDER-tanh is better than every static", "spider-paper-tanh", "cp-wopt", data)
    duel("Not in the paper: spidertensor's default is better than every streaming", "spider", "post", data)
    duel("Not in the paper: spidertensor's default is better than every static", "spider", "cp-wopt", data)
    duel("Not in the paper: SPIDER, with", "spider-paper-tanh", "biases", data)


def test_static_and_streaming_competitors_are_judged_apart():
    rows = clearly("spider-paper", "acc", 0.4) + clearly("post", "acc", 0.5) + clearly("cp-wopt", "acc", 0.3)
    assert claim(rows, STREAMING).status == "holds"
    assert claim(rows, STATIC).status == "does not hold"


def test_one_loss_refutes_every_and_the_numbers_say_where():
    rows = clearly("spider-paper", "acc", 0.4) + clearly("svb-dtf", "acc", 0.3) + clearly("post", "acc", 0.5)
    rows += clearly("spider-paper", "anime", 0.9) + clearly("post", "anime", 0.8)
    found = claim(rows, STREAMING)
    assert found.verdict == "does not hold: 2 wins, 0 undecided, 1 loss"
    assert found.sentence == (
        "SPIDER-ReLU is worse than SVB-DTF on acc. Better in 2 of 3 comparisons, worse in 1."
    )
    (failed,) = [check for check in found.checks if check.outcome == "loss"]
    assert failed.where == "acc, rank 8, batch 256"
    assert failed.numbers.startswith("SPIDER-ReLU 0.4013, SVB-DTF 0.3021: difference +0.099 (")
    assert failed.numbers.endswith("), SPIDER-ReLU ahead in 0 of 3 shared seeds, p < 0.001")
    assert found.notes == [
        "SPIDER-ReLU against POST: 2 wins, 0 undecided, 0 losses; for the claim in 6 of 6 pairs of runs",
        "SPIDER-ReLU against SVB-DTF: 0 wins, 0 undecided, 1 loss; for the claim in 0 of 3 pairs of runs",
    ]


def test_methods_meet_over_shared_seeds_only():
    rows = seeds("spider-paper", [0.40, 0.41, 0.42, 0.99, 0.99])
    rows += [
        row("post", "acc", score, seed=seed) for seed, score in ((2, 0.52), (0, 0.5), (1, 0.511), (7, 0.1))
    ]
    (check,) = claim(rows, STREAMING).checks
    assert check.outcome == "win"
    difference = scipy.stats.ttest_rel([0.40, 0.41, 0.42], [0.5, 0.511, 0.52])
    low, high = (f"{end:.2g}".replace("-", "−") for end in difference.confidence_interval())
    assert check.numbers == (
        f"SPIDER-ReLU 0.4100, POST 0.5103: difference −0.1 ({low} to {high}), "
        "SPIDER-ReLU ahead in 3 of 3 shared seeds, p < 0.001"
    )


def test_a_difference_of_auc_is_above_0_where_the_first_is_better():
    (check,) = claim(clearly("spider-paper", "anime", 0.9) + clearly("post", "anime", 0.8), STREAMING).checks
    assert "difference +0.099 (" in check.numbers
    assert "SPIDER-ReLU ahead in 3 of 3 shared seeds" in check.numbers


def test_fewer_than_three_shared_seeds_are_not_judged():
    rows = seeds("spider-paper", [0.3, 0.3, 0.3]) + seeds("post", [0.5, 0.6])
    found = claim(rows, STREAMING)
    assert found.verdict == "not judged: 0 wins, 0 undecided, 0 losses, 1 not judged"
    assert found.sentence == "No comparison has 3 shared seeds."
    rows += clearly("svb-dtf", "acc", 0.4)
    found = claim(rows, STREAMING)
    assert found.verdict == "holds where judged: 1 win, 0 undecided, 0 losses, 1 not judged"
    assert found.sentence == "Better in 1 of 1 comparison, 1 not judged."


def test_a_score_that_is_not_a_number_loses():
    for broken in (None, math.nan):
        rows = clearly("spider-paper", "acc", 0.4) + seeds("post", [0.1, 0.1, broken])
        assert claim(rows, STREAMING).status == "holds"
        rows = seeds("spider-paper", [0.1, 0.1, broken]) + clearly("post", "acc", 0.4)
        assert claim(rows, STREAMING).status == "does not hold"
        rows = seeds("spider-paper", [0.1, 0.1, broken]) + seeds("post", [0.1, broken, 0.1])
        assert claim(rows, STREAMING).status == "not judged"


def test_runs_that_two_settings_share_are_compared_once():
    rows = []
    for size in (64, 256, 512):
        rows += clearly("spider-paper", "acc", 0.4, batch_size=size)
        rows += clearly("post", "acc", 0.5, batch_size=size)
    rows += clearly("cp-wopt", "acc", 0.3)  # does not see the batch size
    assert [check.where for check in claim(rows, STATIC).checks] == ["acc, rank 8, batch 256"]
    assert len(claim(rows, STREAMING).checks) == 3
    rows += clearly("spider-paper", "acc", 0.4, rank=3) + clearly("cp-wopt", "acc", 0.3, rank=3)
    rows += clearly("mean", "acc", 1.0)  # sees neither
    assert len(claim(rows, STATIC).checks) == 2
    assert len(claim(rows, "Not in the paper: SPIDER, with").checks) == 1
    again = [each | {"experiment": "again"} for each in rows]  # the same settings in another file
    assert len(claim(rows + again, STATIC).checks) == 2


def test_undecided_comparisons_alone_leave_a_claim_undecided():
    rows = seeds("spider-paper", [0.40, 0.42, 0.41]) + seeds("spider-paper-tanh", [0.41, 0.41, 0.42])
    found = claim(rows, "ReLU is better")
    assert found.verdict == "undecided: 0 wins, 1 undecided, 0 losses"
    assert found.sentence == "Better in none of 1 comparison, undecided in 1."
    steady = seeds("spider-paper", [0.40, 0.42, 0.44], "anime")
    steady += seeds("spider-paper-tanh", [0.41, 0.45, 0.441], "anime")
    assert claim(rows + steady, "ReLU is better").sentence == (
        "Better in none of 2 comparisons, undecided in 2 (in every seed: 1 worse)."
    )
    rows += clearly("spider-paper", "dblp", 0.9) + clearly("spider-paper-tanh", "dblp", 0.8)
    assert claim(rows, "ReLU is better").status == "holds in part"


def test_what_an_entry_costs_stands_beside_the_verdict():
    rows = clearly("spider-paper", "acc", 0.4, seconds=0.002) + clearly("post", "acc", 0.5, seconds=0.003)
    assert claim(rows, STREAMING).costs == (
        "µs per entry: SPIDER-ReLU 2 (not timed alone); POST 3 (not timed alone)"
    )
    rows.append(row("post", "acc", 0.5, experiment="time", seconds=0.001))
    rows.append(row("post", "dblp", 0.5, experiment="time", seconds=0.005))
    rows[0]["machine"] = "a GPU"
    assert claim(rows, STREAMING).costs == (
        "µs per entry: SPIDER-ReLU 2 (not timed alone, a GPU); POST 1 to 5"
    )


def test_claims_are_about_the_data_sets_of_the_paper():
    rows = clearly("spider-paper", "movielens-100k", 0.9) + clearly("post", "movielens-100k", 1.0)
    assert claim(rows, STREAMING).verdict == "not run"


def test_failed_rows_and_other_experiments_do_not_count():
    rows = [
        row("spider-paper", "acc", 0.4), row("post", "acc", error="ValueError: no"),
        row("post", "acc", 0.1, experiment="time"), row("post", "acc", 0.1, experiment="approximations"),
        row("post", "acc", 0.1, experiment="approximations-tanh"), row("first-order", "acc", 0.1),
        row("post", "acc", 0.1, experiment="tuning"),
    ]  # fmt: skip
    assert claim(rows, STREAMING).verdict == "not run"


def test_relu_better_than_tanh():
    duel("ReLU is better", "spider-paper", "spider-paper-tanh", "dblp")


def test_static_worse_than_post_on_two_data_sets_only():
    duel("CP-WOPT is worse", "post", "cp-wopt")
    rows = clearly("post", "dblp", 0.7) + clearly("cp-wopt", "dblp", 0.9)
    assert claim(rows, "CP-WOPT is worse").status == "not run"


def test_every_variant_of_a_method_is_compared_under_a_name_that_says_which():
    rows = clearly("post", "acc", 0.4)
    for name, score in (("cp-wopt", 0.3), ("cp-wopt-1000", 0.5), ("cp-wopt-early", 0.3)):
        rows += clearly(name, "acc", score, loud=False)
    rows += clearly("cp-wopt", "acc", 0.5, loud=True)
    found = claim(rows, "CP-WOPT is worse")
    assert [(check.ours, check.outcome) for check in found.checks] == [
        ("CP-WOPT, 100 iterations", "loss"),
        ("CP-WOPT, 100 iterations, loud", "win"),
        ("CP-WOPT, 1,000 iterations", "win"),
        ("CP-WOPT, stopped early", "loss"),
    ]


def test_often_is_at_least_half():
    rows = clearly("post", "acc", 0.4) + clearly("svb-gptf", "acc", 0.5) + clearly("ss-gptf", "acc", 0.3)
    found = claim(rows, "The GP methods")
    assert found.verdict == "holds: 1 win, 0 undecided, 1 loss"
    assert found.sentence == "SS-GPTF is better than POST on acc. Worse in 1 of 2 comparisons, better in 1."
    rows += clearly("post", "dblp", 0.4) + clearly("svb-gptf", "dblp", 0.5)
    assert claim(rows, "The GP methods").status == "does not hold"


@pytest.mark.parametrize(("auc", "status"), [(0.52, "holds"), (0.47, "holds"), (0.7, "does not hold")])
def test_near_chance(auc, status):
    assert claim(clearly("svb-dtf", "anime", auc), "SVB-DTF is near").status == status
    assert claim(clearly("svb-dtf", "anime", auc)[:2], "SVB-DTF is near").status == "not judged"


@pytest.mark.parametrize(
    ("data", "other", "theirs", "status"),
    [
        ("acc", "post", 0.40, "holds"),  # 0.5 is 25 % above
        ("acc", "spider-paper", 0.49, "does not hold"),  # worse, but by 2 %
        ("acc", "cp-wopt", 0.60, "does not hold"),
        ("dblp", "post", 0.60, "holds"),
        ("dblp", "ss-gptf", 0.52, "does not hold"),
    ],
)
def test_much_worse_is_worse_by_a_margin(data, other, theirs, status):
    rows = clearly("svb-dtf", data, 0.5) + clearly(other, data, theirs)
    found = claim(rows, "SVB-DTF is much worse")
    assert found.status == status
    (check,) = found.checks
    assert check.ours == "SVB-DTF"
    assert check.numbers.startswith("SVB-DTF 0.50")


def test_neither_beyond_nor_within_the_margin_is_undecided():
    rows = seeds("svb-dtf", [0.42, 0.43, 0.41]) + seeds("post", [0.40, 0.40, 0.40])  # 0.42 is the margin
    assert claim(rows, "SVB-DTF is much worse").status == "undecided"


def test_roughness_of_a_line_is_nothing():
    assert behaviour.roughness([1, 2, 3, 4]) == 0
    assert behaviour.roughness([0, 1, 0, 1]) == 2
    assert math.isnan(behaviour.roughness([1, 2]))


def curves(method, data, shape, rank=8):
    """Three seeds, each with a curve a little above the other's; the shapes differ a little too."""
    return [
        row(
            method, data, 0.4, rank=rank, seed=seed,
            curve=[each * (1 + wobble) + wobble for each in shape],
        )
        for seed, wobble in enumerate(WOBBLE)
    ]  # fmt: skip


@pytest.mark.parametrize("theirs", ["svb-dtf", "svb-gptf", "ss-gptf"])
def test_smoother(theirs):
    smooth, rough = [0.5 - 0.001 * n for n in range(20)], [0.5 + 0.01 * (n % 2) for n in range(20)]
    rows = curves("spider-paper", "acc", smooth) + curves(theirs, "acc", rough)
    assert claim(rows, "Running curves of SPIDER").status == "holds"
    rows = curves("spider-paper", "acc", rough) + curves(theirs, "acc", smooth)
    assert claim(rows, "Running curves of SPIDER").status == "does not hold"
    rows = curves("spider-paper", "acc", rough) + curves(theirs, "acc", smooth[:10])
    assert claim(rows, "Running curves of SPIDER").status == "not run"  # other distances between the points


@pytest.mark.parametrize(
    ("data", "rank", "status", "ahead"),
    [("anime", 8, "holds", 100), ("anime", 3, "does not hold", 50), ("dblp", 8, "does not hold", 50)],
)
def test_best_on_the_fly_but_early_on_some(data, rank, status, ahead):
    rows = curves("spider-paper", data, [0.5] * 10 + [0.8] * 10, rank)
    rows += curves("post", data, [0.7] * 20, rank)
    found = claim(rows, "SPIDER-ReLU is best on the fly")
    assert found.status == status
    seeds = 0 if status == "does not hold" else 3
    assert found.checks[0].numbers.startswith(f"ahead at {ahead}% of the points (difference ")
    assert f"SPIDER-ReLU ahead in {seeds} of 3 shared seeds), p " in found.checks[0].numbers


def test_on_the_fly_a_curve_that_breaks_loses():
    broken = curves("post", "dblp", [0.9] * 20)
    broken[1]["curve"][7]["paper"] = None
    rows = curves("spider-paper", "dblp", [0.8] * 20) + broken
    assert claim(rows, "SPIDER-ReLU is best on the fly").status == "holds"


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
    found = claim(rows, "Redundant")
    assert found.status == "does not hold"
    assert found.sentence == (
        "Not SPIDER-ReLU on acc. It holds in none of 1 check. "
        "0% of the weights are pruned, 0% stay within 0.05 of the prior."
    )
    rows.append(row("spider-paper-tanh", "acc", protocol="weights", weights=weights(0.1)))
    assert claim(rows, "Redundant").status == "holds in part"  # it says nothing about every network


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


def approximation(method, scores, rejected=None, densities=None, experiment="approximations", **settings):
    """Rows with one score, number of rejected updates and log density for each seed."""
    rows = []
    for seed, (score, count) in enumerate(zip(scores, rejected or [0] * len(scores), strict=True)):
        each = row(
            method, "movielens-100k", score, seed=seed, experiment=experiment, rejected=count, **settings
        )
        if densities:
            each["scores"]["paper"]["log_density"] = densities[seed]
        rows.append(each)
    return rows


FIRST = approximation("first-order", [0.90, 0.91, 0.92])
UNSTABLE, NO_BETTER = "A second-order expansion is unstable", "A second-order expansion is no better"


@pytest.mark.parametrize(
    ("start", "other"),
    [(NO_BETTER, "second-order"), ("A better approximation", "noise-quadrature")],
)
def test_no_better(start, other):
    assert claim(FIRST + approximation(other, [0.95, 0.961, 0.97]), start).status == "holds"
    assert claim(FIRST + approximation(other, [0.89, 0.93, 0.92]), start).status == "undecided"
    assert claim(FIRST + approximation(other, [0.80, 0.811, 0.82]), start).status == "does not hold"


@pytest.mark.parametrize(
    ("first", "second", "outcome"),
    [
        ((15, 25, 20), (40, 50, 46), "win"),
        ((15, 25, 20), (17, 24, 22), "undecided"),
        ((15, 25, 20), (14, 24, 20), "undecided"),
        ((15, 25, 20), (5, 14, 11), "loss"),
        ((0, 0, 0), (0, 0, 0), "undecided"),  # such runs cannot tell
        ((15, 25), (40, 50), "not judged"),
    ],
)
def test_unstable_is_more_rejected_updates(first, second, outcome):
    scores = [0.92, 0.93, 0.95][: len(first)]
    rows = approximation("first-order", scores, first) + approximation("second-order", scores, second)
    (check,) = claim(rows, UNSTABLE).checks
    assert check.outcome == outcome


def test_a_run_that_crashed_or_is_not_finite_is_unstable():
    assert claim(FIRST + approximation("second-order", [0.92, math.nan, 0.9]), UNSTABLE).status == "holds"
    second = approximation("second-order", [0.92, 0.93, 0.94])
    second[1] |= {"scores": None, "error": "FloatingPointError: overflow"}
    found = claim(FIRST + second, UNSTABLE)
    assert found.status == "holds"
    assert "runs that crashed: 1" in found.checks[0].numbers
    for each in second:
        each |= {"scores": None, "error": "FloatingPointError: overflow"}
    assert claim(FIRST + second, UNSTABLE).status == "holds"
    assert claim(FIRST + second, NO_BETTER).status == "not run"


def test_score_and_log_density_are_judged_each_on_its_own_and_for_each_activation():
    first, other = {"densities": [-1.0, -1.1, -1.2]}, {"densities": [-0.5, -0.601, -0.7]}
    rows = []
    for experiment, activation in (("approximations", "relu"), ("approximations-tanh", "tanh")):
        how = {"experiment": experiment, "activation": activation}
        rows += approximation("first-order", [0.90, 0.91, 0.92], **how, **first)
        rows += approximation("noise-quadrature", [0.90, 0.92, 0.91], **how, **other)
    found = claim(rows, "A better approximation")
    assert found.verdict == "does not hold: 0 wins, 2 undecided, 2 losses"
    assert found.notes == [
        f"{activation}, by {what}: better in {better} of 3 pairs of runs with the same seed"
        for what, better in (("score", 1), ("log density", 3))
        for activation in ("relu", "tanh")
    ]


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
    """`spider-study report study/results` has written them: `cp report/claims.md study/docs/`."""
    root = Path(__file__).parents[1]
    rows = read([root / "results"])
    said = markdown.claims(page.CLAIMS[1], page.JUDGED, [], claims(r.runs(rows), r.failed(rows)))
    assert (root / "docs" / "claims.md").read_text(encoding="utf-8") == said
