"""The journal by itself: what it has, and what it says if the disk fails."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("orjson")

from spidertensor.service.journal import NOT_WRITTEN, PERHAPS_WRITTEN, Journal, JournalError, Row

ABOUT = {"id": "a", "kind": "SpiderRegressor"}


def row(sequence: int, body: bytes = b"[]") -> Row:
    return Row(sequence, sequence, f"key {sequence}", "application/json", False, body)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Journal]:
    journal = Journal.opened(path)
    yield journal
    journal.close()


SYNC_FAILS = """
import sys
from pathlib import Path

from failing_sync import fail_syncs
from spidertensor.service.journal import Journal, JournalError, Row

journal = Journal(Path(sys.argv[1]), {"id": "a"})
journal.append([Row(1, 1, "key 1", "application/json", False, b"[]")])
if not fail_syncs():
    sys.exit("no filters here")
try:
    journal.append([Row(2, 2, "key 2", "application/json", False, b"[]")])
except JournalError as error:
    print(error.remedy, flush=True)
    __import__("os")._exit(0)  # as a kill does it
"""


def test_what_a_failing_disk_may_have_kept_is_not_said_to_be_lost(tmp_path):
    path = tmp_path / "m.journal"
    found = subprocess.run(
        [sys.executable, "-c", SYNC_FAILS, path],
        capture_output=True, text=True, check=False,
        env={"PYTHONPATH": ":".join(each for each in sys.path if each), "PATH": ""},
    )  # fmt: skip
    if "no filters here" in found.stderr:
        pytest.skip("the system cannot make a sync fail")
    assert found.stdout.strip() == PERHAPS_WRITTEN, found.stderr
    with opened(path) as journal:
        assert journal.span() == (1, 2)  # for it is there


def test_a_journal_that_cannot_be_begun_says_that_nothing_was_learned(tmp_path):
    (tmp_path / "folder").mkdir()
    journal = Journal(tmp_path / "folder" / "m.journal", ABOUT)
    journal.remove()
    (tmp_path / "folder").rmdir()
    with pytest.raises(JournalError) as caught:
        journal.append([row(1)])
    assert caught.value.remedy == NOT_WRITTEN
