"""The journal by itself: what it has, and what it says if the disk fails."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("orjson")

from spidertensor.service.journal import NOT_WRITTEN, PERHAPS_WRITTEN, Journal, JournalError, Row
from spidertensor.service.opening import NewModel
from spidertensor.service.opening import opened as opened_model

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


# --- damage

NEW = NewModel("SpiderRegressor", ["user", "movie"], "rating", {"random_state": 1})
KILLED = """
import json, os, sys
from pathlib import Path
from spidertensor.service.journal import Journal, Row

journal = Journal(Path(sys.argv[1]), json.loads(sys.argv[2]))
for each in json.load(sys.stdin):
    journal.append([Row(*each[:5], each[5].encode())])
os._exit(0)
"""
FILES = ("", "-wal", "-end")


def numbered(n: int) -> Row:
    return row(n, json.dumps([{"user": n, "movie": "Alien", "rating": n % 5}]).encode())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a killed server with 400 requests in its journal."""
    folder = tmp_path_factory.mktemp("whole")
    requests = json.dumps([(*numbered(n)[:5], numbered(n).body.decode()) for n in range(1, 401)])
    about = json.dumps(NEW._asdict() | {"id": "a"})
    arguments = [sys.executable, "-c", KILLED, folder / "m.spider.journal", about]
    subprocess.run(arguments, input=requests, text=True, check=True)
    assert (folder / "m.spider.journal-wal").stat().st_size > 100_000
    return folder


@pytest.fixture
def left(whole, tmp_path):
    for path in whole.iterdir():
        shutil.copy(path, tmp_path)
    return tmp_path / "m.spider.journal"


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def contents(journal: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in journal.parent.iterdir()}


def in_journal(journal: Path) -> list[Row]:
    with opened(journal) as found:
        return [each for cut in found.cuts(0) for each in cut]


def is_refused(journal: Path) -> str:
    """Also the second time, for nothing was changed."""
    before = contents(journal)
    for _ in range(2):
        with pytest.raises(JournalError) as caught:
            opened_model(journal.with_suffix(""), NEW)
        assert "--accept-loss" in caught.value.remedy
        assert contents(journal) == before
    return caught.value.reason


def what_is_left(journal: Path) -> tuple[list[str], list[Row]]:
    """What a start that accepts the loss says, and which requests it has."""
    said: list[str] = []
    served = opened_model(journal.with_suffix(""), NEW, None, said.append)
    try:
        return said, [each for cut in served.journal.cuts(0) for each in cut]
    finally:
        served.journal.close()
        served.answers.close()
        served.forecasts.close()


def test_a_whole_journal_is_opened_without_a_word(left):
    assert what_is_left(left) == ([], [numbered(n) for n in range(1, 401)])


def test_a_flipped_bit_in_the_log_is_noticed(left):
    log = left.with_name(f"{left.name}-wal")
    flip(log, 4 * log.stat().st_size)
    assert "but all up to request 400 were acknowledged" in is_refused(left)
    damaged = contents(left)
    said, rows = what_is_left(left)
    assert len(said) == 1
    assert 100 < len(rows) < 300
    assert rows == [numbered(n) for n in range(1, len(rows) + 1)]
    assert left.with_name(f"{left.name}.lost-wal").read_bytes() == damaged[log.name]
    assert what_is_left(left) == ([], rows)


@pytest.mark.parametrize("at", [0.3, 0.9])
def test_a_log_cut_short_is_noticed(left, at):
    log = left.with_name(f"{left.name}-wal")
    log.write_bytes(log.read_bytes()[: int(at * log.stat().st_size)])
    assert "but all up to request 400 were acknowledged" in is_refused(left)


@pytest.mark.parametrize("deleted", [("-wal",), ("", "-wal")])
def test_deleted_files_are_noticed(left, deleted):
    for ending in deleted:
        left.with_name(left.name + ending).unlink()
    assert "but all up to request 400 were acknowledged" in is_refused(left)
    said, rows = what_is_left(left)
    assert (len(said), rows) == (1, [])
    assert what_is_left(left) == ([], [])


def test_whatever_bit_is_flipped_nothing_changes_in_silence(left):
    """In each of the files; what is never read may change, what is learned may not."""
    good = contents(left)
    wanted = [numbered(n) for n in range(1, 401)]
    rng = np.random.default_rng(0)
    refused = 0
    for ending in FILES:
        path = left.with_name(left.name + ending)
        for bit in rng.integers(8 * len(good[path.name]), size=40).tolist():
            for name, content in good.items():
                left.with_name(name).write_bytes(content)
            flip(path, bit)
            try:
                with contextlib.closing(opened_model(left.with_suffix(""), NEW).journal) as journal:
                    assert [each for cut in journal.cuts(0) for each in cut] == wanted, (path.name, bit)
            except JournalError:
                refused += 1
    assert refused > 20


def test_every_column_of_a_request_is_covered(left):
    with contextlib.closing(sqlite3.connect(left)) as file:
        file.execute("pragma wal_checkpoint(truncate)")
    good = left.read_bytes()
    for column, value in [
        ("cut", 4), ("key", "'key 6'"), ("key", "null"), ("media_type", "'application/x-ndjson'"),
        ("skip", 1), ("body", "x'5b5d'"), ("checksum", 1), ("sequence", 1000),
    ]:  # fmt: skip
        left.write_bytes(good)
        with contextlib.closing(sqlite3.connect(left)) as file, file:
            file.execute(f"update requests set {column} = {value} where sequence = 5")
        assert "cannot be used: request" in is_refused(left), column
        assert what_is_left(left)[1] == [numbered(n) for n in range(1, 5)]
        for path in left.parent.glob("*.lost*"):
            path.unlink()


def test_an_exchanged_journal_is_noticed(left, tmp_path):
    """One of the same model, as long and whole, with other requests."""
    (tmp_path / "other").mkdir()
    other = Journal(tmp_path / "other" / "m", NEW._asdict() | {"id": "a"})
    other.append([row(n) for n in range(1, 401)])
    other.close()
    left.with_name(f"{left.name}-wal").unlink()
    shutil.move(other.path, left)
    shutil.rmtree(tmp_path / "other")
    assert "request 400 is not the one that was acknowledged" in is_refused(left)


def test_a_kill_between_the_two_writes(left):
    """The journal is ahead of its end by a request that was not acknowledged, which is learned."""
    ending = left.with_name(f"{left.name}-end")
    end = ending.read_bytes()
    with opened(left) as journal:
        journal.append([numbered(401)])
        journal.close_unchanged()
    ending.write_bytes(end)
    assert what_is_left(left) == ([], [numbered(n) for n in range(1, 402)])
    ending.unlink()  # it is there before the first request
    assert "journal-end, which says how far it went, is gone" in is_refused(left)


def test_a_torn_end_is_the_one_before_and_a_damaged_one_is_noticed(left):
    ending = left.with_name(f"{left.name}-end")
    good = ending.read_bytes()
    for slot in (0, 4096):
        ending.write_bytes(good[:slot] + b"\0" * 10 + good[slot + 10 :])
        assert len(in_journal(left)) == 400
    ending.write_bytes(b"\0" * len(good))
    assert "journal-end: cannot be used" in is_refused(left)
    said, rows = what_is_left(left)
    assert (len(said), len(rows)) == (1, 400)


def test_a_journal_of_version_0_2_is_opened(tmp_path):
    path = tmp_path / "m.spider.journal"
    about = NEW._asdict() | {"id": "a"}
    Journal(path, about).close()
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("update about set text = ?", (json.dumps(about | {"format": 1}),))
        for n in (1, 2):
            each = numbered(n)
            file.execute(
                "insert into requests values (?, ?, ?, ?, 0, ?, ?)",
                (*each[:4], each.body, zlib.crc32(each.body)),
            )
    with opened(path) as journal:
        journal.append([numbered(3)])
    assert what_is_left(path) == ([], [numbered(n) for n in (1, 2, 3)])
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("update requests set sequence = 4 where sequence = 3")
    assert "requests are missing" in is_refused(path)
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("delete from requests where sequence = 4")
    assert "but all up to request 3 were acknowledged" in is_refused(path)
