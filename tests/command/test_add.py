"""`fit --add`: what the model's file knows about its columns need not be said again."""

from __future__ import annotations

import json

import pytest

import spidertensor
from spidertensor import cli
from spidertensor.service.bodies import JSON, entries
from spidertensor.service.opening import NewModel, opened
from spidertensor.service.requests import Request
from spidertensor.service.served import wanted_to_learn

SMALL = {"rank": 2, "hidden": (4,), "committee": 1, "random_state": 0, "scaling": (3.0, 1.0)}
ROWS = [{"user": f"u{n % 3}", "film": n % 4, "stars": n % 5} for n in range(30)]


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A model that a server made and learned: its file names the column of the values, and no source."""
    monkeypatch.chdir(tmp_path)
    learning = opened(tmp_path / "m.spider", NewModel("SpiderRegressor", ["user", "film"], "stars", SMALL))
    body = json.dumps(ROWS).encode()
    wanted = wanted_to_learn(learning.learner, 1000)
    learning.learn([Request(entries(body, JSON, wanted), body, JSON)])
    learning.close()
    (tmp_path / "more.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def add(*more: str) -> int | None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["fit", "more.jsonl", "--model", "m.spider", "--add", "--quiet", *more])
    return stopped.value.code


@pytest.mark.parametrize("more", [(), ("--value", "stars")])
def test_the_column_of_the_values_is_that_of_the_server(served, more):
    assert add(*more) in (0, None)
    assert spidertensor.load("m.spider").n_entries_ == 60


def test_another_column_is_refused(served, capsys):
    assert add("--value", "film") == 2
    assert "has value 'stars', the command says 'film'" in capsys.readouterr().err
    assert spidertensor.load("m.spider").n_entries_ == 30


@pytest.mark.parametrize("position", [None, "text", {"value": 3}, {"value": ""}])
def test_a_model_that_does_not_tell_needs_to_be_told(served, capsys, position):
    model = spidertensor.load("m.spider")
    model.save("m.spider", position)
    assert add() == 2
    assert "does not name the value column: use --value" in capsys.readouterr().err
    assert add("--value", "stars") in (0, None)
    assert spidertensor.load("m.spider").n_entries_ == 60
