"""The command spider-study: evaluate by name, methods, data, and its help."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from spidertensor.demo.synthetic import synthetic
from spidertensor.spider.likelihoods import PROBIT
from spidertensor_study import cli, datasets
from spidertensor_study.registry import METHODS

pytestmark = pytest.mark.usefixtures("warm_kernels")


@pytest.fixture
def study(capsys, tmp_path, monkeypatch):
    """Run `spider-study` in an empty folder: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"NO_COLOR": "1", "COLUMNS": "100", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stopped:
            cli.main(list(arguments))
        return int(stopped.value.code or 0), *capsys.readouterr()

    return run


def test_evaluate_takes_every_method(study):
    for method in ("spider-single", "post"):
        arguments = ("evaluate", "synthetic", "--method", method, "--rank", "2", "--json")
        code, out, err = study(*arguments)
        assert code == 0, err
        record = json.loads(out)
        assert (record["method"], set(record["floors"])) == (method, {"mean", "biases", "static-biases"})
        assert record["score"] < record["floors"]["mean"]["score"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("evaluate", "netflix"), "unknown data set 'netflix'"),
        (("evaluate", "synthetic", "--method", "magic"), "choose one of spider-paper, spider-pa"),
        (("evaluate", "synthetic", "--method", "cp-wopt", "--protocol", "prequential"), "no prequ"),
        (("evaluate", "acc", "--test", "0.3"), "has published tests; --test takes paper or clean"),
        (("data", "info", "netflix"), "unknown data set"),
        (("experiment", "none.toml"), "none.toml"),
    ],
)
def test_what_cannot_be_done_is_one_line(study, monkeypatch, arguments, reason):
    split = synthetic((5, 4), 200)
    object.__setattr__(split, "tests", {"paper": split.train, "clean": split.train})
    monkeypatch.setattr(datasets, "load", lambda name: split)
    code, out, err = study(*arguments)
    assert (code, out) == (2, "")
    assert reason in err
    assert err.startswith("spider-study: ")
    assert err.count("\n") == 1


def test_notes_beside_figures_that_need_them(study, monkeypatch):
    ratings, dblp = datasets.INFOS["movielens-1m"], datasets.INFOS["dblp"]
    small = replace(synthetic((5, 4), 200), prequential_note=ratings.prequential_note)
    binary = replace(synthetic((5, 4, 3), 200, likelihood=PROBIT), held_out_note=dblp.held_out_note)
    monkeypatch.setattr(datasets, "load", lambda name: binary if name == "dblp" else small)
    _, out, _ = study("evaluate", "movielens-1m", "--protocol", "prequential", "--method", "mean", "--json")
    assert "gives some ratings away" in json.loads(out)["notes"][1]
    _, out, _ = study("evaluate", "dblp", "--method", "biases", "--json")
    assert "measure that shift" in json.loads(out)["notes"][0]
    _, out, _ = study("evaluate", "dblp", "--method", "biases")
    assert "that shift" in " ".join(out.split())
    assert "AUC" in out


def here(study) -> dict[str, str]:
    """The data sets on this machine, and where."""
    found = json.loads(study("data", "list", "--json")[1])
    shown = [line.split()[0] for line in study("data", "list")[1].splitlines() if line[:1].strip()]
    assert shown == [each["name"] for each in found]
    return {each["name"]: each["path"] for each in found if each["path"]}


def test_data(study, monkeypatch, tmp_path):
    folder = tmp_path
    monkeypatch.setenv("SPIDER_DATA", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    code, shown, _ = study("data", "list")
    assert code == 0
    for name in ("movielens-1m", "acc", "flights", "synthetic"):
        assert name in shown
    assert len(json.loads(study("data", "list", "--json")[1])) == 11
    assert "acc" not in here(study)
    (folder / "acc.mat").write_bytes(b"")
    assert here(study)["acc"] == str(folder / "acc.mat")
    (folder / "acc.mat").unlink()
    assert "CC0" in study("data", "info", "anime")[1]
    code, _, err = study("data", "get", "acc")
    assert code == 2
    assert "Get it from" in err
    code, out, err = study("data", "get", "synthetic")
    assert (code, out) == (0, "generated, no file\n")


@pytest.fixture
def ratings(tmp_path, monkeypatch) -> None:
    """A small movielens-100k, in which genres say most."""
    monkeypatch.setenv("SPIDER_DATA", str(tmp_path))
    rng, n = np.random.default_rng(0), 1200
    index = rng.integers((40, 300), size=(n, 2))
    value = 3 + 1.0 * (index[:, 1] % 2) + 0.3 * rng.normal(size=n)
    np.savez(
        tmp_path / "movielens-100k.npz", indices=index, values=value, shape=[40, 300], time_order=np.arange(n)
    )
    np.savez(
        tmp_path / "movielens-100k-attributes.npz",
        user_age=np.arange(40), user_gender=np.array(["F", "M"] * 20),
        user_occupation=np.array(["none"] * 40), movie_year=1960.0 + np.arange(300) % 50,
        movie_title=np.array([f"Film {each}" for each in range(300)]),
        movie_genres=np.array(["Drama", "War"] * 150), movie_genres_start=np.arange(301),
    )  # fmt: skip


def test_evaluate_with_the_attributes_of_a_data_set(study, ratings):
    named = ("evaluate", "movielens-100k", "--committee", "1", "--rank", "2", "--json")
    scores = []
    for more in ((), ("--modes", "user+gender,movie+year+genres"), ("--modes", "user,movie+genres+title")):
        code, out, err = study(*named, *more)
        assert code == 0, err
        scores.append(json.loads(out)["score"])
    assert scores[1] < 0.7 * scores[0]
    assert json.loads(study(*named, "--modes", "user,movie+year+genres")[1])["attributes"] == {
        "year": "number",
        "genres": "many",
    }
    in_order = study(*named, "--modes", "user+age,movie+genres", "--protocol", "prequential")
    assert json.loads(in_order[1])["floors"]["biases"]["score"] > 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ("movielens-100k", "--modes", "user,movie"),
            "--modes is for files, and movielens-100k is not a file",
        ),
        (("movielens-100k", "--modes", "movie+year,user"), "has the modes user, movie, in this order"),
        (("movielens-100k", "--modes", "user,movie+color"), "no column 'color': there are age, gender,"),
        (
            ("synthetic", "--modes", "user,movie+year"),
            "synthetic has no attributes: choose movielens-100k or",
        ),
        (("movielens-100k", "--modes", "user+age,movie", "--method", "biases"), "learns from ids alone"),
        (("movielens-100k", "--modes", "user+age,movie", "--attributes", "user=a.csv"), "is for files"),
    ],
)
def test_attributes_that_a_data_set_does_not_have(study, ratings, arguments, reason):
    code, out, err = study("evaluate", *arguments)
    assert (code, out) == (2, "")
    assert reason in err


def test_data_says_which_attributes_there_are(study):
    assert (
        "user: age, gender, occupation; movie: year, title, genres"
        in study("data", "info", "movielens-1m")[1]
    )
    assert "attributes" not in study("data", "info", "anime")[1]
    assert " ".join(study("data", "list")[1].split()).count("; with attributes") == 2
    found = {each["name"]: each["attributes"] for each in json.loads(study("data", "list", "--json")[1])}
    assert found["movielens-100k"]["movie"] == ["year", "title", "genres"]


def test_methods(study):
    shown = json.loads(study("methods", "--json")[1])
    assert list(shown) == list(METHODS)
    assert all(shown.values())
    assert all(name in study("methods")[1] for name in METHODS)


@pytest.mark.parametrize("command", [*cli.COMMANDS, "evaluate", "data list", "data info", "data get"])
def test_help_fits_a_terminal_and_names_no_types(study, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = study(*command.split(), "--help")
    assert code == 0
    assert "<bool>" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_every_command_is_listed_with_a_whole_sentence(study, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    listed = study("--help")[1].partition("Commands:")[2]
    assert all(f"\n  {command} " in listed for command in ("evaluate", *cli.COMMANDS))
    assert "..." not in listed


def test_help_of_evaluate_shows_the_methods(study):
    assert "--method NAME" in study("evaluate", "--help")[1]
