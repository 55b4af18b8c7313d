"""The page of `spider serve` in a real browser: it shows what the server tells, as text, and heals."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

pytest.importorskip("starlette")
pytest.importorskip("playwright")

from playwright.sync_api import Browser, Page, expect, sync_playwright

from serving import RATINGS, Server, rows, serving

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
REBOUND = "rebound.example"  # a name that leads to this machine
LABELS = "<i>no</i>,<u>yes</u>"
HOSTILE = "<img src=x onerror=\"document.title='taken over'\"><script>document.title='taken over'</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        assert not os.environ.get("SPIDER_NEEDS_BROWSER"), "no browser, and .ci/run must not skip these tests"
        pytest.skip(f"needs a browser, one of: {', '.join(BROWSERS)}")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1"]
        started = playwright.chromium.launch(executable_path=found, args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory, warm_kernels) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("dashboard"), "--model", "m.spider", *RATINGS) as server:
        server.learn(rows(300))
        yield server


def opened(browser: Browser, server: Server, **context) -> Page:
    """The page, which fails a test at the first error in its console."""
    page = browser.new_context(**context).new_page()
    page.set_default_timeout(20_000)
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.problems = problems  # pyright: ignore[reportAttributeAccessIssue]
    page.goto(server.url)
    expect(page.locator("#connection")).to_have_attribute("data-state", "live", timeout=20_000)
    page.wait_for_selector("#chart-error canvas")
    return page


@pytest.fixture
def page(browser, server) -> Iterator[Page]:
    page = opened(browser, server)
    yield page
    assert page.problems == []
    page.context.close()


def tile(page: Page, name: str) -> str:
    return page.locator("#numbers > div", has_text=name).locator("dd").first.inner_text()


def ask(page: Page, form: str, **ids: str) -> str:
    for mode, text in ids.items():
        page.locator(f"#{form} [data-mode={mode}]").fill(text)
    page.locator(f"#{form} button").click()
    answer = page.locator(f"#{form} output")
    expect(answer).not_to_have_text(re.compile("^(…|)$"))
    return answer.inner_text()


@pytest.mark.slow
def test_numbers_move_while_a_client_learns(page, server):
    before = server.get("/v1/model")["entries"]
    server.learn(rows(700, seed=3))
    expect(page.locator("#numbers")).to_contain_text(f"{before + 700:,}", timeout=10_000)
    assert float(tile(page, "error")) > 0
    told = page.locator("#chart-error .visually-hidden").text_content()
    assert re.search(r"next entry [\d.]+, mean so far [\d.]+, one bias per node [\d.]+", told or "")


@pytest.mark.slow
def test_forecasts_are_shown_beside_the_next_entry(browser, server):
    for size in ((1280, 900), (360, 740)):
        page = opened(browser, server, viewport={"width": size[0], "height": size[1]})
        part = rows(40, seed=5)
        said = server.predict(part, query="?remember=1h")["predictions"]
        server.learn([row | {"_forecast": each["forecast"]} for row, each in zip(part, said, strict=True)])
        summary = page.locator("#chart-forecasts .visually-hidden")
        expect(summary).to_have_text(
            re.compile(r"forecasts [\d.]+, mean so far [\d.]+, one bias per node [\d.]+"), timeout=10_000
        )
        assert float(tile(page, "error of forecasts")) > 0
        compared = page.locator("#numbers > div", has_text="error of forecasts")
        expect(compared).to_have_text(re.compile("(better|worse) than|level with"))
        assert tile(page, "forecasts in 90").endswith("%")
        late = page.locator("#numbers > div", has_text="forecasts scored")
        expect(late).to_contain_text(
            re.compile(r"values known after [\d.]+ seconds \(median\), 90 % within \d+ s")
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        assert page.problems == []
        page.context.close()


def test_a_prediction_is_the_one_of_the_interface(page, server):
    row = rows(1)[0]
    [expected] = server.predict([row], query="?interval=0.9")["predictions"]
    answer = ask(page, "predict", user=str(row["user"]), movie=str(row["movie"]))
    shown = [float(each.replace(",", "")) for each in re.findall(r"-?[\d.,]*\d", answer)]
    wanted = [expected["mean"], expected["std"], expected["low"], expected["high"]]
    assert shown == [pytest.approx(each, rel=0.01) for each in wanted]
    assert "Never seen" not in answer
    assert "Never seen before: this user." in ask(page, "predict", user="nobody", movie=str(row["movie"]))


def test_a_recommendation_names_the_best_first(page, server):
    row = rows(1)[0]
    best = server.http.post("/v1/recommend", json={"given": {"user": row["user"]}, "over": "movie"}).json()
    answer = ask(page, "recommend", user=str(row["user"]))
    names = [line.partition(":")[0] for line in answer.splitlines() if line]
    assert names == [str(each["id"]) for each in best["nodes"]]


@pytest.mark.slow
def test_an_error_is_told_where_it_was_asked(browser, server, tmp_path, warm_kernels):
    with serving(tmp_path, "--model", "n.spider", *RATINGS) as empty:
        page = browser.new_context().new_page()
        page.goto(empty.url)
        page.wait_for_selector("#predict [data-mode=user]")
        assert "nothing learned yet" in ask(page, "predict", user="1", movie="2")
        page.context.close()


def test_ids_of_the_stream_stay_text(page, server):
    wild = [{"user": HOSTILE, "movie": HOSTILE, "rating": 400.0}]
    server.learn(wild)
    expect(page.locator("#surprises tbody")).to_contain_text("<img src=x", timeout=10_000)
    ask(page, "recommend", user=HOSTILE)
    expect(page.locator("main img, main script")).to_have_count(0)
    assert page.title() == "m.spider · spider"


@pytest.mark.slow
def test_a_zoom_survives_new_points_and_can_be_left_by_keyboard(page, server):
    page.wait_for_timeout(2500)  # a few points to zoom into
    page.locator("#chart-rate").scroll_into_view_if_needed()  # forecasts have a chart above it
    box = page.locator("#chart-rate .u-over").bounding_box()
    assert box is not None

    def at(share: float) -> tuple[float, float]:
        return box["x"] + box["width"] * share, box["y"] + 20

    def ends() -> list[str]:
        """The times at both ends of the chart, as its legend tells them under the pointer."""
        told = []
        for share in (0.01, 0.99):
            page.mouse.move(*at(share))
            told.append(page.locator("#chart-rate .u-legend td").first.inner_text())
        return told

    page.mouse.move(*at(0.3))
    page.mouse.down()
    page.mouse.move(*at(0.7), steps=4)
    page.mouse.up()
    leave = page.get_by_role("button", name="leave zoom")
    expect(leave).to_be_visible()
    zoomed = ends()
    server.learn(rows(10, seed=9))
    page.wait_for_timeout(2500)
    assert ends() == zoomed
    leave.focus()
    page.keyboard.press("Enter")
    expect(leave).to_be_hidden()
    assert ends() != zoomed


@pytest.mark.slow
def test_a_lost_connection_heals(browser, tmp_path, warm_kernels):
    with serving(tmp_path, "--model", "m.spider", *RATINGS) as server:
        server.learn(rows(300))
        page = opened(browser, server)
        port = server.url.rpartition(":")[2].strip("/")
        assert server.stop() == 0
        expect(page.locator("#connection")).to_have_attribute("data-state", "lost", timeout=20_000)
    with serving(tmp_path, "--model", "m.spider", "--port", port) as server:
        server.learn(rows(50, seed=4))
        expect(page.locator("#connection")).to_have_attribute("data-state", "live", timeout=30_000)
        expect(page.locator("#numbers")).to_contain_text("350", timeout=10_000)
        page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 900), (360, 740)], ids=["desktop", "phone"])
def test_it_fits_the_screen_and_can_be_read(browser, server, scheme, size):
    viewport = {"width": size[0], "height": size[1]}
    page = opened(browser, server, viewport=viewport, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    charts = page.locator("#charts canvas")
    for n in range(charts.count()):
        box = charts.nth(n).bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= size[0]
    # WCAG AA: soft text on the page and on cards
    assert page.evaluate(CONTRAST) >= 4.5
    assert page.problems == []
    page.context.close()


def test_every_control_has_a_name_and_can_be_reached_by_keyboard(page):
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, input, select, a[href]')]"
        ".filter(e => !(e.innerText || e.labels?.[0]?.innerText || '').trim()).length"
    )
    assert nameless == 0
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "ask"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.mode") == "user"


def test_it_loads_nothing_from_elsewhere(browser, server):
    asked: list[str] = []
    page = browser.new_context().new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(server.url)
    page.wait_for_selector("#numbers dd")
    time.sleep(0.5)
    assert asked
    assert {url for url in asked if not url.startswith((server.url, "data:"))} == set()
    page.context.close()


@pytest.mark.slow
def test_names_of_columns_and_labels_stay_text(browser, tmp_path, warm_kernels):
    names = ["<script>alert`1`</script>", "<u onclick>movie</u>", "<b onclick>y</b>"]
    options = ("--modes", ",".join(names[:2]), "--value", names[2], "--binary", "--labels", LABELS)
    with serving(tmp_path, "--model", "<s>m.spider", *options, "--seed", "1", "--committee", "2") as server:
        learned = [dict(zip(names, (n % 5, n % 3, "<u>yes</u>"), strict=True)) for n in range(20)]
        server.learn(learned)
        page = opened(browser, server)
        for name in names:
            expect(page.locator("#surprises thead")).to_contain_text(name)
        assert names[0] in page.locator("#predict").inner_text()
        expect(page.locator("main img, main script, b, i, u, s")).to_have_count(0)
        assert page.problems == []
        page.context.close()


@contextlib.contextmanager
def another_origin(folder) -> Iterator[str]:
    """The address of an empty page that an attacker serves."""
    (folder / "index.html").write_text("<!doctype html><title>attack</title>")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("token", [None, "a-token-of-28-letters-or-so-1"])
def test_a_page_of_another_origin_reads_nothing_and_changes_nothing(browser, tmp_path, token, warm_kernels):
    (tmp_path / "page").mkdir()
    (tmp_path / "token").write_text(token or "")
    options = ("--token-file", "token") if token else ()
    with (
        serving(tmp_path, "--model", "m.spider", *RATINGS, *options) as server,
        another_origin(tmp_path / "page") as attacker,
    ):
        if token:
            server.http.headers["Authorization"] = f"Bearer {token}"
        server.learn(rows(30))
        page = browser.new_context().new_page()
        page.goto(attacker)
        # the token too: a page of another origin that knows it is another origin still
        tried = page.evaluate(ATTACKS, [server.url.rstrip("/"), token or "guess-guess-guess-guess"])
        for name, outcome in tried.items():
            assert outcome in ("refused", "opaque"), (name, outcome)
        assert tried["read"] == tried["learn"] == tried["guess"] == tried["events"] == "refused"
        page.wait_for_timeout(300)  # forms and beacons arrive
        assert server.entries() == 30
        assert [frame.url for frame in page.frames if frame.url.startswith(server.url)] == []
        port = server.url.rpartition(":")[2].strip("/")
        answer = page.goto(f"http://{REBOUND}:{port}/v1/model")
        assert answer is not None
        assert answer.status == (401 if token else 403)
        page.context.close()


ATTACKS = """async ([url, guess]) => {
  const row = '[{"user": 1, "movie": "m1", "rating": 5, "more": "="}]';
  const tell = (answer) => answer.type === "opaque" ? "opaque" : `answered ${answer.status}`;
  const tried = (path, how) => fetch(url + path, how).then(tell, () => "refused");
  const post = (type, more) => ({method: "POST", body: row, headers: {"Content-Type": type}, ...more});
  const inside = (tag, more) => Object.assign(document.createElement(tag), more);
  const element = (tag, path) => new Promise((done) => document.body.append(inside(tag, {
    src: url + path, onload: () => done("loaded"), onerror: () => done("refused")})));
  const events = new Promise((done) => {
    const source = new EventSource(url + "/v1/events");
    source.onmessage = source.onopen = () => done("answered");
    source.onerror = () => { source.close(); done("refused"); };
  });
  const framed = inside("iframe", {src: url + "/", name: "dashboard"});
  const target = inside("iframe", {name: "answer"});
  const form = inside("form", {
    method: "POST", enctype: "text/plain", action: url + "/v1/learn", target: "answer"});
  form.append(inside("input", {name: row.slice(0, -4), value: row.slice(-3)}));
  document.body.append(framed, target, form);
  form.submit();
  navigator.sendBeacon(url + "/v1/learn", row);
  navigator.sendBeacon(url + "/v1/checkpoint");
  return {
    read: await tried("/v1/model"),
    blind: await tried("/v1/model", {mode: "no-cors"}),
    learn: await tried("/v1/learn", post("application/json")),
    simple: await tried("/v1/learn", post("text/plain", {mode: "no-cors"})),
    forget: await tried("/v1/attributes/user", post("application/json", {method: "PUT"})),
    guess: await tried("/v1/model", {headers: {Authorization: `Bearer ${guess}`}}),
    file: await tried("/v1/model/file", {credentials: "include"}),
    image: await element("img", "/v1/model"),
    script: await element("script", "/dashboard.js"),
    events: await events,
  };
}"""


CONTRAST = """() => {
  const light = (text) => {
    const parts = text.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
    const [r, g, b] = parts.map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = (selector) => getComputedStyle(document.querySelector(selector));
  const ground = [style("body").backgroundColor, style("figure").backgroundColor].map(light);
  const ink = ["#about", "body", "#numbers dt", "a"].map((selector) => light(style(selector).color));
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  return Math.min(...ink.flatMap((a) => ground.map((b) => ratio(a, b))));
}"""
