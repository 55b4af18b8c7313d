"""Shell completion, in a real bash; and what the package logs."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys

import pytest

from spidertensor import SpiderRegressor, load

COMPLETE = """
eval "$(spider --show-completion bash)"
for words in "spider ro" "spider fit x.csv --predic" "spider recommend m --explore uc"; do
    read -ra COMP_WORDS <<< "$words"
    COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
    _spider_completion spider
    echo "${COMPREPLY[@]}"
done
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_options_and_choices(tmp_path, monkeypatch):
    command = tmp_path / "spider"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m spidertensor "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    ran = subprocess.run(["bash", "-c", COMPLETE], capture_output=True, text=True, check=False)
    assert (ran.stdout.split("\n"), ran.stderr) == (["rollback", "--predictions", "ucb", ""], "")


def test_saves_and_loads_are_logged(tmp_path, caplog):
    with caplog.at_level(logging.DEBUG, "spidertensor"):
        SpiderRegressor(rank=2, hidden=(4,), committee=1).fit([("a", "b"), ("b", "b")], [1, 2]).save(
            tmp_path / "m"
        )
        load(tmp_path / "m")
    size = (tmp_path / "m").stat().st_size
    said = [each.getMessage() for each in caplog.records if each.name == "spidertensor.checkpoint"]
    assert said == [f"saved {tmp_path / 'm'}, {size} bytes", f"loaded {tmp_path / 'm'}, {size} bytes"]


def test_the_package_prints_no_log_by_itself(tmp_path):
    """Without a handler of its own Python would print a warning of the package to standard error."""
    code = "import logging, spidertensor; logging.getLogger('spidertensor.spider').warning('not shown')"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert (ran.stdout, ran.stderr) == ("", "")
