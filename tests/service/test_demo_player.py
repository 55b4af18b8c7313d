"""`spider serve --demo`: what its client sends."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("starlette")

from serving import assert_same, serving
from spidertensor import SpiderRegressor
from spidertensor.cli import playing
from spidertensor.demo import clock
from spidertensor.demo.synthetic import synthetic


def test_entries_are_forecast_and_learned_by_that_once_their_value_is_known(tmp_path, warm_kernels):
    dataset = synthetic((9, 8), 600)
    index, value, *_ = dataset.in_time_order()
    table = dict(zip(dataset.modes, index.T, strict=True))
    how = ("--modes", ",".join(dataset.modes), "--value", dataset.value_name)
    with serving(tmp_path, "--model", "m.spider", *how, "--seed", "1", "--committee", "2") as server:
        playing.play(server.url, playing.DemoStream(dataset, table))
        told = server.get("/v1/model")
        server.stop()
    model, said = SpiderRegressor(random_state=1, committee=2), {}
    for known, asked in clock(dataset).ticks(playing.FIRST_ENTRIES):
        if len(known):
            forecast = [said.get(at) for at in known.tolist()]
            model.learn(index[known], value[known], forecast=forecast if any(forecast) else None)
        if model.__sklearn_is_fitted__():
            at = range(asked.start, asked.stop)
            said |= dict(zip(at, model.forecast(index[asked]), strict=True))
    assert (told["entries"], told["unknown_forecasts"]) == (model.n_entries_, 0)
    assert told["forecasts"] > 100
    assert_same(tmp_path / "m.spider", model)


def test_a_row_has_times_as_texts_and_nothing_that_is_missing():
    table = {
        "plane": np.array(["N1", "N2"]),
        "time": np.array(["2013-01-01T05:15", "2013-01-01T05:29"], "datetime64[m]"),
        "temp": np.array([np.nan, 39.02]),
        "model": np.array([None, "A320"], object),
    }
    assert playing._rows(table, np.array([1, 0])) == [
        {"plane": "N2", "time": "2013-01-01T05:29", "temp": 39.02, "model": "A320"},
        {"plane": "N1", "time": "2013-01-01T05:15"},
    ]
