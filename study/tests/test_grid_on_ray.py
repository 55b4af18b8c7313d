"""A grid of runs on a real Ray, started for this file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spidertensor_study.cli import main
from spidertensor_study.rows import identity

pytest.importorskip("ray", reason="several workers need Ray: pip install 'spidertensor[ray]'")

from spidertensor.cluster import ray_cluster


@pytest.fixture(scope="module", autouse=True)
def running():
    """On loopback only, with two workers."""
    with ray_cluster.started(None, 2):
        yield


def test_a_grid_has_the_same_rows_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = '[[grid]]\nmethod = ["mean", "biases"]\ndata = "synthetic"\nseed = [0, 1]\nentries = 600\n'
    Path("tiny.toml").write_text(text)

    def rows(folder: str, *more: str) -> dict[str, dict]:
        with pytest.raises(SystemExit) as ended:
            main(["experiment", "tiny.toml", "--out", folder, *more])
        assert ended.value.code == 0
        lines = [json.loads(line) for line in Path(folder, "tiny.jsonl").read_text().splitlines()]
        return {identity(row["settings"]): row["scores"]["paper"]["score"] for row in lines}

    assert len(rows("a", "--seeds", "1")) == 2
    first = Path("a", "tiny.jsonl").read_text()
    assert rows("a", "--cluster", "auto") == rows("b")
    assert Path("a", "tiny.jsonl").read_text().startswith(first)
