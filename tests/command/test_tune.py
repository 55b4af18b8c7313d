"""`spider tune`: what is kept predicts better by more than chance, and the command it prints is a command."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest

from spidertensor import load
from spidertensor.evaluation.tuning import trials
from spidertensor.method import Batch, Method, Prediction, Update
from spidertensor.spider.likelihoods import GAUSSIAN

VALUES = np.random.default_rng(0).normal(size=400)
ENTRIES = Batch(np.zeros((400, 2), np.int64), VALUES)


def guessing(mean_of, tried):
    """A method for each settings, which predicts mean_of(settings) of the values, with variance 1."""

    def method_of(settings):
        tried.append(dict(settings))
        mean, one = mean_of(settings), np.ones(400)
        return Method(
            lambda seed: None,
            lambda state, batch: (state, Update(*np.empty((4, len(batch.value))), rejected=0)),
            lambda state, index, bags=None: Prediction(mean, 0.5 * one, 0.5 * one),
        )

    return method_of


def test_a_ladder_is_climbed_while_it_helps_and_kept_settings_stay():
    tried = []
    better = {4: 0.1, 16: 0.5, 32: 0.4}  # share of the value that is known

    def mean_of(settings):
        return better.get(settings.get("rank"), 0.3) * VALUES

    found = list(trials(guessing(mean_of, tried), ENTRIES, ENTRIES, GAUSSIAN, 0))
    assert tried[:4] == [{}, {"rank": 4}, {"rank": 16}, {"rank": 32}]  # not 2: 4 is worse
    assert all(settings["rank"] == 16 for settings in tried[4:])
    assert [trial.change for trial in found if trial.kept] == [{}, {"rank": 16}]
    # log N(y; s y, 1) = const - (1 - s)^2 y^2 / 2
    gain = (0.7**2 - 0.5**2) / 2 * VALUES**2
    assert found[2].gain == pytest.approx(gain.mean())
    assert found[2].error == pytest.approx(gain.std(ddof=1) / 20)
    assert found[2].score == pytest.approx(0.5 * np.sqrt((VALUES**2).mean()))


def test_a_gain_within_chance_is_not_kept():
    noise = np.random.default_rng(1).normal(size=400)
    noise -= noise @ VALUES / (VALUES @ VALUES) * VALUES  # as often better as worse

    def mean_of(settings):
        return VALUES * 1e-3 + 0.1 * noise if settings else np.zeros(400)

    found = list(trials(guessing(mean_of, []), ENTRIES, ENTRIES, GAUSSIAN, 0))
    assert not any(trial.kept for trial in found[1:])


@pytest.mark.slow
def test_the_command_that_is_printed_fits_the_model_that_was_found(folder, spider, fails, warm_kernels):
    assert spider("sample", "a.csv")[0] == 0
    lines = (folder / "a.csv").read_text().splitlines()[:701]  # few rows are learned once
    (folder / "a.csv").write_text("\n".join(lines) + "\n")
    asked = ("a.csv", "--modes", "user,movie", "--value", "rating", "--time", "time")
    code, out, _ = spider("tune", *asked, "--json")
    assert code == 0
    record = json.loads(out)
    assert record["held_back"] == 70
    assert record["trials"][0]["change"] == {}
    words = shlex.split(record["command"])
    assert words[: 2 + len(asked)] == ["spider", "fit", *asked]
    assert spider(*words[1:])[0] == 0
    settings = load("a.spider").settings_
    for name, value in record["settings"].items():
        assert settings[name] == value
    code, out, _ = spider("tune", *asked)
    assert code == 0
    assert "a.csv: 70 latest entries held back" in out
    assert out.splitlines()[-1].startswith("spider fit a.csv --modes user,movie")
    assert "--labels is for --binary" in fails("tune", *asked, "--labels", "a,b")
    assert "a file needs --modes" in fails("tune", "a.csv")
    assert "--seed takes a whole number" in fails("tune", *asked, "--seed", "-1")
    assert "neither a mode nor the value" in fails("tune", *asked[:-1], "rating")
