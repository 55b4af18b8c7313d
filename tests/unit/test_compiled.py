"""Compiled kernels on disk: never older than their sources, and never a reason to fail."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import spidertensor
from spidertensor.spider import compiled

PACKAGE = Path(spidertensor.__file__).parent
CAP_DAC_OVERRIDE, PR_CAPBSET_DROP = 1, 24
NOTICE = "compiling kernels, once per installation"
NO_CACHE = "set NUMBA_CACHE_DIR"
# A kernel that is quick to compile and calls one in another file: log N(0 | 0, 1 + 1).
PROBE = """
from spidertensor.spider.compiled import COMPILE, kernel
from spidertensor.spider.likelihoods.gaussian import evidence

@kernel(**COMPILE)
def probe(y):
    return evidence(y, 0.0, 1.0, 1.0)[0]
"""
# Its value, and how many kernels were compiled.
PROGRAM = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
from spidertensor.spider.compiled import compilations
from spidertensor.spider.likelihoods.probe import probe
print(round(probe(0.0), 4), len(compilations()))
"""


def obey_permissions() -> None:
    """In a child, before it starts: root, too, may not write where the mode forbids it."""
    if os.geteuid() == 0:
        assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE) == 0


def no_room() -> None:
    """In a child: files can be made, but not written."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


class Install:
    """A copy of the package, with a home folder and a place for a cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package, self.home, self.cache = folder / "lib/spidertensor", folder / "home", folder / "cache"
        shutil.copytree(PACKAGE, self.package, ignore=shutil.ignore_patterns("__pycache__"))
        (self.package / "spider/likelihoods/probe.py").write_text(PROBE)
        self.home.mkdir()
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "XDG_"))} | {
            "PYTHONPATH": str(self.package.parent),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(self.home),
        }

    def run(self, program: str = PROGRAM, before=obey_permissions, **environment: object):
        """(log evidence, number of kernels compiled), and the lines on standard error."""
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False,
            env=self.environment | {name: str(value) for name, value in environment.items()},
            preexec_fn=before, cwd=self.folder,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        value, count = done.stdout.split()
        return float(value), int(count), done.stderr.splitlines()

    def protect(self, *folders: Path) -> None:
        for top in folders:
            for folder in (top, *top.rglob("*")):
                if folder.is_dir():
                    folder.chmod(0o555)


@pytest.fixture
def install(tmp_path):
    made = Install(tmp_path)
    yield made
    for folder in tmp_path.rglob("*"):
        if folder.is_dir():
            folder.chmod(0o755)  # or pytest cannot remove it


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*.nb[ic]")}


@pytest.mark.slow
def test_a_change_in_a_called_file_is_seen_and_old_files_go(install):
    first, compiled_first, log = install.run()
    assert (first, log[0]) == (-1.2655, f"INFO {NOTICE}, about 15 s")
    assert all(re.fullmatch(r"INFO compiled in \d+ s", each) for each in log[1:])  # on a slow machine
    assert compiled_first > 0
    assert install.run() == (first, 0, [])  # and without a change nothing is compiled again
    before = files(install.package)
    (install.package / "spider/likelihoods/__pycache__/another.nbi").write_text("not ours")
    source = install.package / "spider/likelihoods/gaussian.py"
    text = source.read_text()
    assert text.count("_LOG_2PI = math.log(2 * math.pi)") == 1
    source.write_text(text.replace("_LOG_2PI = math.log(2 * math.pi)", "_LOG_2PI = 100.0"))
    changed, compiled_again, _ = install.run()
    assert changed == pytest.approx(first - 50 + 0.5 * 1.8379, abs=1e-3)
    assert compiled_again == compiled_first
    after = files(install.package)
    assert before.isdisjoint(after)
    assert "another.nbi" in after
    assert len(after) == len(before) + 1


@pytest.mark.slow
def test_numba_cache_dir_is_where_the_user_says(install):
    install.run(NUMBA_CACHE_DIR=install.cache)
    assert files(install.cache)
    assert not files(install.package)
    assert not files(install.home)
    assert install.run(NUMBA_CACHE_DIR=install.cache)[1:] == (0, [])


@pytest.mark.slow
def test_a_read_only_install_uses_the_cache_folder_of_the_user(install):
    install.protect(install.package)
    assert install.run()[1] > 0
    assert files(install.home)
    assert install.run()[1:] == (0, [])


@pytest.mark.slow
def test_where_nothing_can_be_written_everything_works_and_one_line_says_why_it_is_slow(install):
    install.protect(install.package, install.home)
    for _ in range(2):
        value, count, log = install.run()
        assert value == -1.2655
        assert count > 0
        assert [line.split()[0] for line in log] == ["WARNING", "INFO"]
        assert NO_CACHE in log[0]
        assert NOTICE in log[1]


@pytest.mark.slow
def test_the_command_says_it_in_one_line(install):
    install.protect(install.package, install.home)
    program = PROGRAM.replace("logging.basicConfig", "(lambda **_: None)").replace(
        "import logging, sys", "import logging, sys, spidertensor.cli.program as program; program._show_log()"
    )
    log = install.run(program)[2]
    assert [NO_CACHE in line for line in log] == [True, False]


@pytest.mark.slow
def test_a_read_only_cache_that_was_warmed_is_read(install):
    install.run(NUMBA_CACHE_DIR=install.cache)
    install.protect(install.package, install.home, install.cache)
    assert install.run(NUMBA_CACHE_DIR=install.cache) == (-1.2655, 0, [])


@pytest.mark.slow
def test_a_full_disk_costs_the_cache_and_nothing_else(install):
    value, _, log = install.run(before=no_room)
    assert value == -1.2655
    assert [line.split()[0] for line in log] == ["INFO", "WARNING"]
    assert "not saved (File too large)" in log[1]


@pytest.mark.slow
def test_files_that_another_process_removes_meanwhile(install):
    install.run()
    program = PROGRAM.replace(
        "print(",
        "import pathlib\nfor path in pathlib.Path('lib').rglob('*.nb[ic]'): path.unlink()\nprint(",
    )
    value, count, _ = install.run(program)
    assert value == -1.2655
    assert count > 0


def test_kernels_and_numba_s_private_flags_have_one_home():
    inside = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}
    private = re.compile(r"\bnjit\b|\b_nrt\b|forceinline|no_c(python|func)_wrapper|numba\.core\.caching")
    assert [name for name, text in inside.items() if private.search(text)] == ["spider/compiled.py"]
    users = [
        name for name, text in inside.items() if re.search(r"spider\.compiled import .*\bkernel\b", text)
    ]
    assert len(users) >= 5
    assert all(name.split("/")[0] in compiled.KERNEL_FOLDERS for name in users)
