"""The examples of docs/service.md, run against a server."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

pytest.importorskip("starlette")

from pages import ROOT, blocks, output
from serving import RATINGS, Server, serving
from spidertensor import SpiderRegressor
from spidertensor.estimator.columns import Context, Many, Number

PAGE = ROOT / "docs" / "service.md"


def answers_of(commands: str, server: Server) -> list[Any]:
    commands = commands.replace("localhost:8080", server.url[7:])
    done = subprocess.run(["bash", "-euc", commands], capture_output=True, text=True, check=True)
    decoder, answers, at = json.JSONDecoder(), [], 0
    while at < len(done.stdout):
        answer, at = decoder.raw_decode(done.stdout, at)
        answers.append(answer)
    return answers


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_example_with_attributes_runs(tmp_path, warm_kernels):
    example = next(block for block in blocks(PAGE) if block.text.startswith("curl -s localhost:8080/v1/attr"))
    modes = {"user": [Number("age")], "movie": [Many("genres", sep="|")], "when": Context("hour")}
    rated = {"user": [42, 43, 42], "movie": ["Alien", "Alien", "Brazil"], "hour": [20, 9, 20]}
    model = SpiderRegressor(modes=modes, committee=1, random_state=1).fit(rated, [4.5, 3.0, 4.0])
    model.save(tmp_path / "m.spider")
    with serving(tmp_path, "--model", "m.spider", "--value", "rating") as server:
        described, predicted, recommended = answers_of(example.text, server)
    assert described["described"] == 2
    assert predicted["predictions"][0]["seen"] == {"user": True, "movie": True}
    assert {each["id"] for each in recommended["nodes"]} == {"Alien", "Brazil", "Solaris"}


def test_the_examples_of_the_page_run(tmp_path, warm_kernels):
    shown = blocks(PAGE)
    examples = [
        next(block for block in shown if block.text.startswith(start)) for start in ("curl ", "import ")
    ]
    with serving(tmp_path, "--model", "ratings.spider", *RATINGS) as server:
        curl, python = (block.text for block in examples)
        python = python.replace("localhost:8080", server.url[7:])
        if shutil.which("curl"):
            answers = answers_of(curl, server)
            assert [next(iter(answer)) for answer in answers] == ["learned", "predictions", "nodes", "model"]
            assert answers[3]["entries"] == 2
        said = output(compile(python, str(PAGE), "exec"), {"__name__": "page"})
        assert said.startswith("1 entry; before it was learned: {'mean'")
        assert "seen: {'user': False, 'movie': True}" in said
