"""Rankings for many rows, of some candidates, without some others: in Python and by the command."""

from __future__ import annotations

import csv
import json
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from pyarrow import parquet

from spidertensor import SpiderClassifier, SpiderRegressor, cli
from spidertensor.estimator import recommend as ranking
from spidertensor.estimator.quick_scores import mean_bounds
from spidertensor.estimator.recommend import EXPLORE
from spidertensor.faults import EntryError
from spidertensor.spider.network import ACTIVATIONS
from spidertensor.spider.quick_means import ERROR

SMALL = {"rank": 2, "hidden": (8,)}
CATEGORIES = {product: f"c{product % 4}" for product in range(40)}


def entries(n=1500, seed=0):
    """User, product, category, and a value that depends on all of them; product 39 is there once."""
    rng = np.random.default_rng(seed)
    users, products = rng.integers(9, size=n), rng.integers(39, size=n)
    products[-1] = 39
    X = [
        (f"u{user}", int(product), CATEGORIES[int(product)])
        for user, product in zip(users, products, strict=True)
    ]
    value = np.sin(users * products) + products % 4 + 0.2 * rng.normal(size=n)
    return X, value


@cache
def model(kind=SpiderRegressor, **settings):
    import pandas

    X, value = entries()
    frame = pandas.DataFrame(X, columns=["user", "product", "category"])
    return kind(**SMALL, **settings).fit(frame, value > 2 if kind is SpiderClassifier else value)


TABLE = {"product": list(CATEGORIES), "category": list(CATEGORIES.values())}


def plain_ranking(fitted, user, explore="mean"):
    """Products by their scores, computed all at once from what predict_parts says."""
    parts = fitted.predict_parts([(user, product, category) for product, category in CATEGORIES.items()])
    if explore == "ucb":
        score = parts.mean + 2 * np.sqrt(parts.var)
    else:
        score = fitted.likelihood_.expected(parts.mean, parts.var)
    return [list(CATEGORIES)[place] for place in np.argsort(-score, kind="stable")]


def ids(ranked):
    return [each.id for each in ranked]


@pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])
@pytest.mark.parametrize("explore", ["mean", "ucb"])
@pytest.mark.parametrize("block", [1, 7, 1000])
def test_blocks_change_nothing(monkeypatch, kind, explore, block):
    monkeypatch.setattr(ranking, "BLOCK", block)
    fitted = model(kind)
    users = ["u0", "u5", "nobody"]
    many = fitted.recommend_many({"user": users}, "product", 12, explore, candidates=TABLE)
    assert [ids(ranked) for ranked in many] == [plain_ranking(fitted, user, explore)[:12] for user in users]
    for user, ranked in zip(users, many, strict=True):
        X = [(user, each.id, CATEGORIES[each.id]) for each in ranked]
        parts = fitted.predict_parts(X)
        np.testing.assert_allclose([each.std for each in ranked], np.sqrt(parts.var), rtol=1e-6)


def test_equal_scores_keep_the_order_of_the_candidates(monkeypatch):
    """All never seen, so all predicted from the prior alike."""
    monkeypatch.setattr(ranking, "BLOCK", 3)
    new = [f"new{place}" for place in range(11)]
    fitted = SpiderRegressor(**SMALL).fit(
        [(user, f"p{p}") for user in range(5) for p in range(9)], np.arange(45)
    )
    for explore in ("mean", "ucb"):
        ranked = fitted.recommend({0: 1}, 1, 5, explore, candidates=[*new, "p1"])
        assert [each for each in ids(ranked) if each != "p1"] == new[: 5 - ("p1" in ids(ranked))]
    assert set(ids(fitted.recommend({0: 1}, 1, 50, "thompson", seed=1, candidates=new))) == set(new)
    drawn = {ids(fitted.recommend({0: 1}, 1, 1, "thompson", seed=s, candidates=new))[0] for s in range(40)}
    assert len(drawn) > 5  # each has a draw of its own


@pytest.mark.parametrize("block", [2, 1000])
def test_thompson_does_not_depend_on_the_blocks(monkeypatch, block):
    fitted = model()
    wanted = fitted.recommend_many({"user": ["u1", "u1"]}, "product", 40, "thompson", 3, candidates=TABLE)
    assert ids(wanted[0]) != ids(wanted[1])  # a draw for each row
    monkeypatch.setattr(ranking, "BLOCK", block)
    again = fitted.recommend_many({"user": ["u1", "u1"]}, "product", 40, "thompson", 3, candidates=TABLE)
    assert [ids(each) for each in again] == [ids(each) for each in wanted]


def test_thompson_draws_a_category_once_for_all_its_products():
    """Only the categories are uncertain: products of one category stay together in every draw."""
    X, value = entries()
    fitted = SpiderRegressor(rank=1, hidden=(2,), multilinear=0, committee=1, scaling=(0, 1)).fit(X, value)
    state = fitted._fitted().state.members[0]
    for weight in state.posterior.weights:
        weight.mean[:], weight.var[:] = 0, 1e-12
    for mode, factor in enumerate(state.posterior.factors):
        factor.mean[:], factor.var[:] = 0, 1.0 if mode == 2 else 1e-12
    table = {1: TABLE["product"], 2: TABLE["category"]}
    firsts = set()
    for seed in range(20):
        ranked = ids(fitted.recommend({0: "u1"}, 1, 40, "thompson", seed, candidates=table))
        groups = [CATEGORIES[product] for product in ranked]
        assert sum(a != b for a, b in pairwise(groups)) == 3
        firsts.add(groups[0])
    assert len(firsts) == 4


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("settings", [{}, {"multilinear": 0, "bias": False}])
def test_quick_means_are_those_of_predict(activation, settings):
    X, value = entries(400)
    fitted = SpiderRegressor(rank=2, hidden=(5, 4), activation=activation, committee=2, **settings).fit(
        X, value
    )
    learned = fitted._fitted()
    rng = np.random.default_rng(0)
    numbers = [np.array([2]), rng.integers(-1, 39, size=60), rng.integers(-1, 4, size=60)]
    low, high = mean_bounds(learned, numbers)
    exact = learned.model.method.predict(learned.state, np.stack(np.broadcast_arrays(*numbers), axis=1)).mean
    assert (np.abs((low + high) / 2 - exact) < 0.05 * (high - low)).all()
    assert (high - low >= 1.8 * ERROR).all()


def test_the_limit_of_blas_threads_ends_with_the_last_that_asked():
    from threadpoolctl import threadpool_info

    from spidertensor.spider.quick_means import one_blas_thread

    def threads():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    before, (first, second) = threads(), (one_blas_thread(), one_blas_thread())
    first.__enter__()
    second.__enter__()
    assert set(threads()) == {1}
    first.__exit__(None, None, None)
    assert set(threads()) == {1}
    second.__exit__(None, None, None)
    assert threads() == before


def test_quick_means_of_products_over_all_modes():
    """Models of before version 0.2 have them."""
    from dataclasses import replace

    from spidertensor.spider.quick_means import quick_means
    from spidertensor.spider.sequential import sequential

    learned = model(committee=1)._fitted()
    network = replace(learned.model.members[0].network, product=True)
    numbers = [np.array([1]), np.arange(9), np.array([0, 1, 2] * 3)]
    exact = sequential(network, learned.model.likelihood, node_noise=True).predict(
        learned.state.members[0], np.stack(np.broadcast_arrays(*numbers), axis=1)
    )
    np.testing.assert_allclose(quick_means(learned.state.members[0], network, numbers), exact.mean, rtol=1e-4)


def test_candidates_and_exclusions():
    fitted = model()
    order = plain_ranking(fitted, "u3")
    some = {"product": order[::-2], "category": [CATEGORIES[product] for product in order[::-2]]}
    assert ids(fitted.recommend({"user": "u3"}, "product", 99, candidates=some)) == order[1::2]
    best, second, third = order[:3]
    where = {"candidates": TABLE, "n": 3}
    for table in (
        [best, third],
        np.array([best, third]),
        {best, third},
        {"product": [best, third, "unknown"]},
    ):
        assert ids(fitted.recommend({"user": "u3"}, "product", exclude=table, **where))[0] == second
    mine = {"user": ["u3", "u4", "u3"], "product": [best, second, best]}
    both = fitted.recommend_many({"user": ["u3", "u5"]}, "product", exclude=mine, **where)
    assert ids(both[0]) == order[1:4]
    assert ids(both[1]) == plain_ranking(fitted, "u5")[:3]
    for explore in EXPLORE:
        assert (
            fitted.recommend({"user": "u3"}, "product", explore=explore, exclude=TABLE["product"], **where)
            == []
        )
        left = fitted.recommend({"user": "u3"}, "product", explore=explore, exclude=order[2:], **where)
        assert set(ids(left)) == {best, second}


def test_by_default_all_nodes_and_repeated_candidates_count_once():
    fitted = SpiderRegressor(**SMALL).fit([(user, p) for user in range(5) for p in range(9)], np.arange(45))
    every = ids(fitted.recommend({0: 1}, 1, 99))
    assert sorted(every) == list(range(9))
    assert ids(fitted.recommend({0: 1}, 1, 99, candidates=[*range(9), 3, 3])) == every
    assert ids(fitted.recommend({0: 1}, 1, 99, exclude=[3])) == [each for each in every if each != 3]
    assert fitted.recommend_many({0: []}, 1) == []
    assert ids(fitted.recommend({}, 1, 2, candidates={1: [4, 5], 0: [1, 1]})) in ([4, 5], [5, 4])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"candidates": "42"}, "ids or columns of ids, not one str"),
        ({"candidates": {"category": ["c1"]}}, "a column of the mode that is ranked"),
        ({"candidates": {"product": [1, 2], "category": ["c1"]}}, "differ in length"),
        (
            {"candidates": {"product": [1, 1], "category": ["c1", "c2"]}},
            "candidate 1 has two ids: 'c1' and 'c2'",
        ),
        ({"candidates": [1, 2]}, "every mode"),
        ({"candidates": TABLE | {"user": ["u1"] * 40}}, "every mode"),
        ({"candidates": 3}, "a dict of columns or a frame, got int"),
        ({"exclude": {"user": ["u1"]}}, "a column of the mode that is ranked"),
        ({"exclude": {"product": [1], "category": ["c1"]}}, "modes that are given, not mode 2"),
        ({"exclude": {"product": [1], "colour": ["c1"]}}, "no mode 'colour'"),
        ({"given": {"user": ["u1"], "category": ["c1", "c2"]}, "candidates": None}, "given differ in length"),
        ({"given": [("u1",)]}, "given must be a dict of columns or a frame, got list"),
        (
            {"candidates": {"product": [1, None], "category": ["c1"] * 2}},
            "row 1: mode 1: candidates: missing id",
        ),
        ({"exclude": [1, None]}, "row 1: mode 1: exclude: missing id"),
        ({"exclude": [1, [2]]}, "row 1: mode 1: exclude: .*list"),
        ({"exclude": np.array([1.0, np.nan])}, "row 1: mode 1: exclude: missing id"),
        ({"exclude": {"product": [1, 2], "user": ["u1", {}]}}, "row 1: mode 0: exclude: .*dict"),
    ],
)
def test_wrong_tables(change, reason):
    arguments = {"given": {"user": ["u1"]}, "over": "product", "candidates": TABLE} | change
    with pytest.raises((ValueError, EntryError), match=reason):
        model().recommend_many(**arguments)


# --- the command


@pytest.fixture
def spider(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, value in {"NO_COLOR": "1", "COLUMNS": "100", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    model().save("m.spider")
    (tmp_path / "products.csv").write_text(
        "price,category,product\n"
        + "".join(f"1,{category},{product}\n" for product, category in CATEGORIES.items())
    )
    (tmp_path / "users.csv").write_text("age,user\n30,u1\n40,u2\n")

    def run(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main(["recommend", "m.spider", "--over", "product", *map(str, arguments)])
        return stopped.value.code, *capsys.readouterr()

    return run


def wanted(users, n=3, **how):
    many = model().recommend_many({"user": users}, "product", n, candidates=TABLE, **how)
    return [
        (user, rank, *each[:3])
        for user, best in zip(users, many, strict=True)
        for rank, each in enumerate(best, 1)
    ]


@pytest.mark.parametrize("name", ["out.csv", "out.parquet", "out.jsonl.gz"])
def test_a_file_of_users(spider, tmp_path, name):
    code, out, err = spider(
        "--given-file", "users.csv", "--candidates", "products.csv", "-n", 3, "--out", name
    )
    assert (code, out) == (0, "")
    assert err == "6 recommendations for 2 rows\n"
    if name.endswith("parquet"):
        found = [tuple(row.values()) for row in parquet.read_table(tmp_path / name).to_pylist()]
    else:
        from spidertensor import sources

        chunks = list(sources.read(sources.named(str(tmp_path / name)), ["user", "rank", "product"], "mean"))
        found = list(zip(*chunks[0].columns, chunks[0].values, strict=True))
    expected = wanted(["u1", "u2"])
    assert [tuple(row[:3]) for row in found] == [row[:3] for row in expected]
    np.testing.assert_allclose([row[3] for row in found], [row[3] for row in expected], rtol=1e-6)


def test_several_modes_from_a_file_and_csv_to_standard_output(spider, tmp_path):
    (tmp_path / "both.csv").write_text("category,user\nc1,u1\nc2,nobody\n")
    code, out, err = spider("--given-file", "both.csv", "-n", 2, "--interval", 0.9)
    assert code == 0
    rows = list(csv.DictReader(out.splitlines()))
    assert list(rows[0]) == ["user", "category", "rank", "product", "mean", "std", "low", "high"]
    many = model().recommend_many({"user": ["u1", "nobody"], "category": ["c1", "c2"]}, "product", 2)
    assert [row["product"] for row in rows] == [str(each.id) for best in many for each in best]
    assert all(float(row["low"]) < float(row["mean"]) < float(row["high"]) for row in rows)
    assert "note: 1 of 2 rows with an id that was never seen: predicted from the prior" in err
    part = spider("--given-file", "both.csv", "--given", "category=c1", "-n", 2)[1]
    assert {row["category"] for row in csv.DictReader(part.splitlines())} == {"c1"}


def test_candidates_and_exclusions_from_files(spider, tmp_path):
    (tmp_path / "some.csv").write_text("product\n3\n5\n7\n999\n")
    code, out, err = spider(
        "--given", "user=u1", "--given", "category=c3", "--candidates", "some.csv", "--json"
    )
    assert code == 0
    assert {each["id"] for each in json.loads(out)["nodes"]} == {3, 5, 7, 999}
    assert "note: 1 of 4 candidates with an id that was never seen" in err
    best = wanted(["u1", "u2"], 2)
    (tmp_path / "seen.csv").write_text(f"when,product,user\n1,{best[0][2]},u1\n2,{best[2][2]},u1\n")
    arguments = ("--given-file", "users.csv", "--candidates", "products.csv", "-n", 2)
    rows = list(csv.DictReader(spider(*arguments, "--exclude", "seen.csv")[1].splitlines()))
    exclude = {"user": ["u1", "u1"], "product": [best[0][2], best[2][2]]}
    expected = wanted(["u1", "u2"], 2, exclude=exclude)
    assert [(row["user"], row["product"]) for row in rows] == [(row[0], str(row[2])) for row in expected]
    (tmp_path / "all.csv").write_text("product\n" + "".join(f"{product}\n" for product in CATEGORIES))
    code, out, err = spider("--given", "user=u1", "--candidates", "products.csv", "--exclude", "all.csv")
    assert code == 0
    assert "all candidates are excluded" in err


def test_thompson_for_a_file_of_users(spider):
    arguments = ("--given-file", "users.csv", "--candidates", "products.csv", "--explore", "thompson")
    first = spider(*arguments, "--seed", 1)[1]
    assert first == spider(*arguments, "--seed", 1)[1]
    assert first != spider(*arguments, "--seed", 2)[1]


def test_one_user_to_a_file_that_a_spreadsheet_can_open(spider, tmp_path):
    fitted = SpiderRegressor(**SMALL).fit([("=x", p) for p in ["=1+1", "b"]] * 5, np.arange(10.0))
    fitted.save(tmp_path / "m.spider")
    for safe, start in (((), "=1+1"), (("--spreadsheet-safe",), "'=1+1")):
        with pytest.raises(SystemExit):
            cli.main(["recommend", "m.spider", "--given", "0==x", "--over", "1", "--out", "o.csv", *safe])
        rows = list(csv.reader((tmp_path / "o.csv").read_text().splitlines()))
        assert start in {row[2] for row in rows}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--given", "user=u1"), "--given is missing for: category"),
        (("--given-file", "users.csv"), "no column 'category'"),
        (("--given-file", "none.csv", "--candidates", "products.csv"), "none.csv: No such file"),
        (("--given-file", "-", "--candidates", "products.csv"), "a file, not standard input"),
        (("--given-file", "users.csv", "--candidates", "users.csv"), "no column 'product'"),
        (
            ("--given-file", "users.csv", "--given", "user=u1", "--candidates", "products.csv"),
            "nothing to tell",
        ),
        (
            ("--given-file", "users.csv", "--candidates", "products.csv", "--json"),
            "--json is for one ranking",
        ),
        (("--given-file", "gap.csv", "--candidates", "products.csv"), "gap.csv line 3: user is missing"),
        (("--given-file", "empty.csv", "--candidates", "products.csv"), "nothing to recommend"),
        (
            ("--given-file", "users.csv", "--candidates", "products.csv", "--out", "users.csv"),
            "the same file",
        ),
        (("--given", "user=u1", "--candidates", "products.csv", "--spreadsheet-safe"), "is for --out"),
    ],
)
def test_command_errors(spider, tmp_path, arguments, reason):
    (tmp_path / "gap.csv").write_text("user,x\nu1,1\n,2\n")
    (tmp_path / "empty.csv").write_text("user\n")
    code, _, err = spider(*arguments)
    assert code == 2
    assert reason in err.splitlines()[-1]
    assert (tmp_path / "users.csv").read_text().startswith("age,user")


def test_candidates_may_be_numbers_of_numpy():
    model = SpiderRegressor(rank=2, hidden=(4,), committee=1, scaling=(0, 1)).fit(
        [(0, 1), (0, 2)], [1.0, 2.0]
    )
    ranked = model.recommend({0: 0}, 1, candidates=[np.int64(1), np.int64(2)])
    assert sorted(each.id for each in ranked) == [1, 2]
