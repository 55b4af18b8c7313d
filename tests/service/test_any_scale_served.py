"""Values of any scale through the command and the service: what was saved can be opened again."""

from __future__ import annotations

import json

import pandas as pd
import pytest

pytest.importorskip("orjson")

import spidertensor
from serving import rows
from spidertensor.service.bodies import JSON, entries
from spidertensor.service.errors import ServiceError
from spidertensor.service.opening import NewModel, opened
from spidertensor.service.requests import Request
from spidertensor.service.served import wanted_to_learn

pytestmark = [
    pytest.mark.usefixtures("warm_kernels"),
    pytest.mark.filterwarnings("ignore::spidertensor.SpiderWarning"),
]
POWERS = [-300, -150, -99, -90, -76, 76, 98, 102, 300]


@pytest.mark.parametrize("power", POWERS)
def test_what_a_server_acknowledged_can_be_opened(power, tmp_path):
    path = tmp_path / "m.spider"
    new = NewModel("SpiderRegressor", ["user", "movie"], "rating", {"random_state": 1, "committee": 2})
    served = opened(path, new)
    body = json.dumps([row | {"rating": row["rating"] * 10.0**power} for row in rows(30)]).encode()
    wanted = wanted_to_learn(served.learner)
    (outcome,) = served.learn([Request(entries(body, JSON, wanted), body, JSON)])
    served.close()
    if isinstance(outcome, ServiceError):
        assert (outcome.status, power > 98) == (422, True)
        return
    again = opened(path, None)
    assert again.learner.entries == 30
    again.close()


@pytest.mark.parametrize("power", POWERS)
def test_what_the_command_learned_can_be_opened(power, tmp_path, spider):
    table = pd.DataFrame(rows(30)).assign(rating=lambda each: each.rating * 10.0**power)
    table.to_csv(tmp_path / "ratings.csv", index=False)
    model = tmp_path / "ratings.spider"
    code, _, err = spider(
        "fit",
        tmp_path / "ratings.csv",
        "--modes",
        "user,movie",
        "--value",
        "rating",
        "--model",
        model,
        "--passes",
        "1",
    )
    assert code == 0 or (power > 98 and "too large" in err), err
    assert code or spidertensor.load(model).n_entries_ == 30
