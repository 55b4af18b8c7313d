"""The command spider-study: evaluate by name, methods, data, and its help."""

from __future__ import annotations

import json
from dataclasses import replace

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
