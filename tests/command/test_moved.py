"""Spellings that are now those of `spider-study`: they forward if the study is installed, else name it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import spidertensor
from spidertensor import cli
from spidertensor.cli import moved

OLD = [
    ("report", "results"),
    ("data", "list"),
    ("methods",),
    ("experiment", "grid.toml", "--quick"),
    ("evaluate", "movielens-1m"),
    ("evaluate", "synthetic", "--method", "post", "--rank", "2"),
]
needs_study = pytest.mark.skipif(
    find_spec("spidertensor_study") is None, reason="needs the study: pip install ./study"
)


@pytest.fixture
def spider(capsys, monkeypatch, tmp_path):
    """Call the command in an empty folder: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"NO_COLOR": "1", "COLUMNS": "100", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            cli.main(list(arguments))
        return int(stop.value.code or 0), *capsys.readouterr()

    return call


@pytest.mark.parametrize("arguments", OLD, ids=" ".join)
def test_an_installed_study_gets_all_arguments_after_one_note(spider, monkeypatch, arguments):
    """Whatever is installed under the name spider-study."""
    calls = []

    class Installed:
        def load(self):
            return calls.append

    def found(group: str, name: str) -> list[Installed]:
        assert (group, name) == ("console_scripts", "spider-study")
        return [Installed()]

    monkeypatch.setattr(moved, "entry_points", found)
    _, _, err = spider(*arguments)
    assert list(calls[0]) == list(arguments)
    note, *_ = err.splitlines()
    assert re.fullmatch(rf"note: `spider {arguments[0]}` is now `spider-study {arguments[0]}`; .*", note)


@needs_study
def test_the_study_answers(spider):
    code, out, err = spider("methods", "--json")
    assert code == 0
    assert "post" in json.loads(out)
    assert err.count("\n") == 1
    code, out, _ = spider("evaluate", "synthetic", "--method", "post", "--rank", "2", "--json")
    assert code == 0
    assert json.loads(out)["method"] == "post"
    code, out, _ = spider("report", "--help")
    assert code == 0
    assert "spider-study report" in out


@needs_study
def test_an_error_of_the_study_is_its_own(spider):
    code, out, err = spider("evaluate", "netflix")
    assert (code, out) == (2, "")
    assert err.splitlines()[1].startswith("spider-study: unknown data set 'netflix'")


@pytest.fixture(scope="module")
def product_only(tmp_path_factory) -> dict[str, str]:
    """An environment whose Python finds the product and what it needs, and no study, installed or not."""
    site = tmp_path_factory.mktemp("site")
    for folder in dict.fromkeys(Path(each) for each in sys.path if Path(each).is_dir()):
        if folder.name in ("site-packages", "dist-packages"):
            for path in folder.iterdir():
                if (
                    "spidertensor" not in path.name
                    and path.suffix != ".pth"
                    and not (site / path.name).exists()
                ):
                    (site / path.name).symlink_to(path)
    (site / "spidertensor").symlink_to(Path(spidertensor.__file__).parent)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return clean | {"PYTHONPATH": str(site), "NO_COLOR": "1", "COLUMNS": "100"}


ALL = """
import contextlib, io, json, sys
from spidertensor import cli

for arguments in json.loads(sys.argv[1]):
    out, err, code = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(arguments)
        except SystemExit as stop:
            code = stop.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


@pytest.fixture(scope="module")
def without_study(product_only, tmp_path_factory) -> dict[tuple[str, ...], tuple[int, str, str]]:
    """What each old spelling does where there is no study: exit code, standard output, standard error."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", ALL, json.dumps(OLD)],
        env=product_only, cwd=tmp_path_factory.mktemp("empty"), capture_output=True, text=True, check=True,
        timeout=120,
    )  # fmt: skip
    assert done.stderr == ""
    return dict(zip(OLD, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("arguments", OLD, ids=" ".join)
def test_without_the_study_one_line_names_it(without_study, arguments):
    code, out, err = without_study[arguments]
    assert (code, out) == (2, ""), err
    assert err.count("\n") == 1
    assert err.startswith("spider: ")
    assert f"`spider-study {arguments[0]}`, of the package spidertensor-study" in err
    assert "pip install ./study" in err


def test_a_misspelt_file_is_not_taken_for_a_data_set(spider, monkeypatch):
    monkeypatch.setattr(moved, "entry_points", lambda group, name: [])
    err = spider("evaluate", "ratings")[2]
    assert "'ratings' is neither a file nor one of the data sets flights, synthetic" in err
    err = spider("evaluate", "synthetic", "--method", "biasses")[2]
    assert "'biasses' is not one of the methods spider, static-biases, biases, mean" in err


def test_help_shows_no_old_spelling(spider):
    listed = spider("--help")[1].partition("Commands:")[2]
    assert "\n  fit " in listed
    for name in moved.COMMANDS:
        assert f"\n  {name} " not in listed
    assert "--method" not in spider("evaluate", "--help")[1]
