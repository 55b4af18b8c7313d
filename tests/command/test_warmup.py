"""`spider warmup`: what it promises is that nothing is left to compile."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

# Learn and predict by the command in one process, then say which kernels had to be compiled for it.
PROGRAM = """
import sys
from spidertensor import cli
from spidertensor.spider.compiled import compilations
for line in sys.stdin.read().splitlines():
    try:
        cli.main(line.split())
    except SystemExit as stop:
        assert not stop.code
print(compilations())
"""
USE = """\
fit entries.csv --modes user,movie --value value --hidden 4 --json --model a.spider
predict a.spider entries.csv --out p.csv
fit entries.csv --modes user,movie,hour --value value --hidden 4,4,4 --json --model b.spider --binary
predict b.spider entries.csv --out q.csv
"""


@pytest.mark.slow
def test_after_a_warmup_a_new_process_compiles_nothing(tmp_path):
    (tmp_path / "entries.csv").write_text("user,movie,hour,value\n" + "a,x,1,1\na,y,2,0\nb,x,1,1\n" * 200)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def run(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments], input=text, env=environment, cwd=tmp_path,
            capture_output=True, text=True, check=True,
        )  # fmt: skip

    warmed = run("-m", "spidertensor", "warmup")
    compiled, folder = warmed.stdout.splitlines()
    assert compiled.startswith("compiled ")
    assert "sequential.run_models" in compiled
    assert folder.startswith(f"kept in {tmp_path / 'cache'}")
    begun, ended = warmed.stderr.splitlines()
    assert begun == "compiling kernels, once per installation, about 15 s"
    assert re.fullmatch(r"compiled in \d+ s", ended)

    used = run("-c", PROGRAM, text=USE)
    assert used.stdout.splitlines()[-1] == "{}"
    assert "compiling" not in used.stderr
    assert (tmp_path / "p.csv").read_text().count("\n") == (tmp_path / "q.csv").read_text().count("\n") == 601


def test_a_warmup_that_cannot_keep_anything_fails(tmp_path):
    """A file stands where the cache folder should be, and the other folders are no folders either."""
    program = """
import numba.core.caching as caching, sys
from spidertensor import cli
from spidertensor.spider import compiled
compiled._Files._locator_classes = [compiled._or_warmed(caching.UserProvidedCacheLocator)]
cli.main(["warmup"])
"""
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "file")},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(
        "spider: no folder for compiled kernels: set NUMBA_CACHE_DIR"
    )
    assert done.stdout == ""
