"""The examples of docs/service.md, run against a server."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

pytest.importorskip("starlette")

from pages import ROOT, blocks, output
from serving import RATINGS, serving

PAGE = ROOT / "docs" / "service.md"


def test_the_examples_of_the_page_run(tmp_path, warm_kernels):
    shown = blocks(PAGE)
    examples = [
        next(block for block in shown if block.text.startswith(start)) for start in ("curl ", "import ")
    ]
    with serving(tmp_path, "--model", "ratings.spider", *RATINGS) as server:
        curl, python = (block.text.replace("localhost:8080", server.url[7:]) for block in examples)
        if shutil.which("curl"):
            done = subprocess.run(["bash", "-euc", curl], capture_output=True, text=True, check=True)
            decoder, answers, at = json.JSONDecoder(), [], 0
            while at < len(done.stdout):
                answer, at = decoder.raw_decode(done.stdout, at)
                answers.append(answer)
            assert [next(iter(answer)) for answer in answers] == ["learned", "predictions", "nodes", "model"]
            assert answers[3]["entries"] == 2
        said = output(compile(python, str(PAGE), "exec"), {"__name__": "page"})
        assert said.startswith("1 entry; before it was learned: {'mean'")
        assert "seen: {'user': False, 'movie': True}" in said
