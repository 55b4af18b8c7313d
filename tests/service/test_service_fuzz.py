"""Whatever is sent to `spider serve`: never a 500, and a request that is refused changes nothing."""

from __future__ import annotations

import json

import httpx
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette")

from serving import ARROW, NDJSON, RATINGS, arrow, rows, serving

JSON = "application/json"
FUZZ = settings(
    max_examples=150, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
PATHS = [
    "/v1/learn", "/v1/predict", "/v1/recommend", "/v1/similar", "/v1/explain", "/v1/checkpoint", "/v1/model",
    "/v1/model/file", "/metrics",
    "/health/live", "/health/ready", "/openapi.json", "/", "/index.html", "/v1/", "/v1/learn/", "/%00", "//",
]  # fmt: skip
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=20),
    st.sampled_from([2**63, -(2**63) - 1, 2**64, 10**30, 1e308, -1e308, 5e-324, "\x00", "m1", 1, 3.5]),
)  # fmt: skip
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
row = st.fixed_dictionaries(
    {}, optional={"user": anything, "movie": anything, "rating": anything, "more": anything}
)
good = st.sampled_from(rows(30))
some_rows = st.lists(st.one_of(good, good, row, anything), max_size=5)
question = st.fixed_dictionaries(
    {},
    optional={
        "given": st.one_of(
            st.just({"user": 1}), st.dictionaries(st.sampled_from(["user", "movie", "x"]), anything)
        ),
        "over": st.one_of(st.just("movie"), anything),
        "n": anything,
        "explore": st.one_of(st.sampled_from(["mean", "ucb", "thompson"]), anything),
        "seed": anything,
        "interval": anything,
    },
)


@pytest.fixture(scope="module")
def http(tmp_path_factory, warm_kernels):
    with serving(tmp_path_factory.mktemp("fuzz"), "--model", "m.spider", *RATINGS) as server:
        server.learn(rows(100))
        yield server.http


def check(http: httpx.Client, method: str, path: str, **how) -> None:
    before = http.get("/v1/model").json()
    answer = http.request(method, path, **how)
    assert answer.status_code < 500, (answer.status_code, answer.text)
    after = http.get("/v1/model").json()
    if answer.status_code != 200 or path.partition("?")[0] != "/v1/learn":
        for name in ("entries", "nodes", "position", "log_evidence", "members"):
            assert after[name] == before[name], (name, answer.text)
    else:
        assert after["entries"] == before["entries"] + answer.json()["learned"]
    if answer.status_code >= 400 and method != "HEAD":
        error = answer.json()["error"]
        assert set(error) == {"kind", "message", "row", "column", "value", "remedy"}
        assert error["kind"]
        assert error["message"]


@pytest.mark.slow
@FUZZ
@given(
    some_rows,
    st.sampled_from(["/v1/learn", "/v1/predict"]),
    st.sampled_from(["", "?on_bad=skip"]),
    st.booleans(),
)
def test_rows_of_any_kind(http, rows, path, query, by_line):
    texts = [json.dumps(each) for each in rows]
    body = "\n".join(texts) if by_line else f"[{', '.join(texts)}]"
    check(http, "POST", path + query, content=body, headers={"Content-Type": NDJSON if by_line else JSON})


@pytest.mark.slow
@FUZZ
@given(question)
def test_recommendations_of_any_kind(http, body):
    for path in ("recommend", "similar", "explain"):
        check(http, "POST", f"/v1/{path}", content=json.dumps(body), headers={"Content-Type": JSON})


@FUZZ
@given(
    st.sampled_from(PATHS),
    st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"]),
    st.sampled_from(
        ["", "?interval=2", "?interval=nan", "?interval=0.5", "?on_bad=x", "?%ff=%00", "?interval="]
    ),
    st.binary(max_size=50),
    st.sampled_from([JSON, NDJSON, ARROW, "text/html", ""]),
    st.dictionaries(
        st.sampled_from(["Idempotency-Key", "Authorization", "Origin", "Range", "Expect", "Accept-Encoding"]),
        st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=10),
        max_size=2,
    ),
)
def test_any_request(http, path, method, query, body, kind, headers):
    if headers.get("Expect"):
        headers.pop("Expect")  # its answer may come before the body, which this client does not understand
    check(http, method, path + query, content=body, headers={**headers, "Content-Type": kind})


@pytest.mark.slow
@FUZZ
@given(st.data())
def test_damaged_arrow_streams(http, data):
    table = pa.table({"user": [1, 2, 3], "movie": ["a", "b", "c"], "rating": [1.0, 2.0, 3.0]})
    if data.draw(st.booleans()):
        table = table.set_column(1, "movie", table["movie"].dictionary_encode())
    body = bytearray(arrow(table))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + 1] = data.draw(st.binary(min_size=0, max_size=4))
    check(http, "POST", "/v1/learn", content=bytes(body), headers={"Content-Type": ARROW})
