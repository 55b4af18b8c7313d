"""The command `spider`, for the tests of every room."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import ENVIRONMENT, csv_text, table
from spidertensor import cli


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty folder to run the command in, whose output has no colours and lines of one length."""
    monkeypatch.chdir(tmp_path)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return tmp_path


@pytest.fixture
def ratings(folder) -> Path:
    (folder / "ratings.csv").write_text(csv_text(table()))
    return folder / "ratings.csv"


@pytest.fixture
def spider(capsys):
    """Call the command in this process: its exit code, and what it printed."""

    def call(*arguments) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            cli.main([str(each) for each in arguments])
        return int(stop.value.code or 0), *capsys.readouterr()

    return call


@pytest.fixture
def fails(spider):
    """Call the command: it must fail with code 2 and one line on standard error, which is returned."""

    def call(*arguments) -> str:
        code, out, err = spider(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("spider: ")
        assert err.count("\n") == 1
        return err

    return call
