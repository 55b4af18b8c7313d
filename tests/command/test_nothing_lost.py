"""No row and no file is lost: two writers, planted links, quiet pipes, full disks; with real processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import spidertensor
from command_line import FIT, csv_text, eventually, forked, n_entries, started, table
from spidertensor import file_lock, sources
from spidertensor.cli.run import Run
from spidertensor.file_lock import LockedError, held
from spidertensor.sources import lines
from spidertensor.writing import replacing

pytestmark = pytest.mark.usefixtures("folder", "warm_kernels")
ADD = ("--modes", "user,movie", "--value", "rating", "--add")


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# --- two writers


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--add", "--resume", "--force"])
def test_a_second_writer_is_told_who_the_first_is(ratings, folder, spider, fails, option):
    spider("fit", "ratings.csv", *FIT, "--model", "m.spider", "--quiet")
    (folder / "link.spider").symlink_to("m.spider")
    before = (folder / "m.spider").read_bytes()
    first = started("fit", "-", "--model", "m.spider", "--add", "--quiet")
    eventually((folder / ".m.spider.lock").exists)
    for name in ("m.spider", "link.spider"):
        text = fails("fit", "ratings.csv", *FIT[:4], "--model", name, option)
        assert f"{name}: is being written by process {first.pid} on " in text
        assert "spider fit - --model m.spider --add --quiet): wait" in text.replace("quiet:", "quiet):")
    assert (folder / "m.spider").read_bytes() == before
    first.communicate(csv_text(table(300, seed=1)).encode(), timeout=300)
    assert first.returncode == 0
    assert spidertensor.load("m.spider").n_entries_ == 1500
    assert files_in(folder) == {"ratings.csv", "m.spider", "link.spider"}


@pytest.mark.slow
def test_a_new_model_has_one_writer_too(ratings, folder, fails):
    first = started("fit", "-", *FIT, "--model", "new.spider")
    eventually((folder / ".new.spider.lock").exists)
    assert "is being written by process" in fails("fit", "ratings.csv", *FIT, "--model", "new.spider")
    first.kill()
    first.communicate()


def test_a_killed_writer_leaves_no_lock(ratings, folder, spider):
    spider("fit", "ratings.csv", *FIT, "--model", "m.spider", "--quiet")
    first = started("fit", "-", "--model", "m.spider", "--add")
    eventually((folder / ".m.spider.lock").exists)
    first.kill()
    first.communicate()
    (folder / "more.csv").write_text(csv_text(table(100, seed=1)))
    assert spider("fit", "more.csv", "--model", "m.spider", "--add", "--quiet")[0] == 0
    assert files_in(folder) == {"ratings.csv", "more.csv", "m.spider"}


@pytest.mark.parametrize("where", ["open", "flock"])
def test_where_there_are_no_locks_a_note_says_so(ratings, folder, spider, monkeypatch, where):
    opened = os.open

    def read_only(path, flags, *rest, **more):
        if str(path).endswith(".lock"):
            raise PermissionError(errno.EROFS, "Read-only file system", path)
        return opened(path, flags, *rest, **more)

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    if where == "open":
        monkeypatch.setattr(os, "open", read_only)
    else:
        monkeypatch.setattr(fcntl, "flock", no_locks)
    code, _, err = spider("fit", "ratings.csv", *FIT, "--quiet")
    reason = "Read-only file system" if where == "open" else "No locks available"
    assert (code, err) == (
        0, f"note: ratings.spider cannot be locked ({reason}); make sure that no other command writes it\n",
    )  # fmt: skip


def test_a_planted_link_is_not_a_lock_file(ratings, folder, spider):
    (folder / "precious").write_text("keep")
    (folder / ".ratings.spider.lock").symlink_to("precious")
    code, _, err = spider("fit", "ratings.csv", *FIT, "--quiet")
    assert code == 0
    assert "cannot be locked" in err
    assert (folder / "precious").read_text() == "keep"


@pytest.mark.slow
def test_the_lock_is_held_by_one_at_a_time(tmp_path):
    """Each unlinks the lock file as it leaves, while others open it: nobody may get a lock on a file that is
    no longer there beside one who has the new one."""
    counter, inside, most = tmp_path / "counter", [], []
    counter.write_text("0")

    def work():
        for _ in range(300):
            while True:
                try:
                    with held(tmp_path / "model") as impossible:
                        assert impossible is None
                        inside.append(1)
                        most.append(len(inside))
                        counter.write_text(str(int(counter.read_text()) + 1))
                        inside.pop()
                    break
                except LockedError:
                    pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert (counter.read_text(), max(most)) == ("1200", 1)
    assert files_in(tmp_path) == {"counter"}


def test_who_holds_it_is_printable(tmp_path, monkeypatch):
    monkeypatch.setattr(file_lock, "_who", lambda: b"\x1b[31mprocess\n\xff")
    with (
        held(tmp_path / "model"),
        pytest.raises(LockedError, match=r"written by \?\[31mprocess\?\ufffd: wait"),
        held(tmp_path / "model"),
    ):
        pass
    monkeypatch.setattr(file_lock, "_who", bytes)
    with (
        held(tmp_path / "model"),
        pytest.raises(LockedError, match="written by another process: wait"),
        held(tmp_path / "model"),
    ):
        pass


# --- what commands write


OUTPUTS = ["out.csv", "out.csv.gz", "out.jsonl", "out.jsonl.zst", "out.parquet"]


@pytest.fixture
def model(ratings, spider):
    spider("fit", "ratings.csv", *FIT, "--model", "m.spider", "--quiet")
    return "m.spider"


@pytest.mark.parametrize("name", OUTPUTS)
def test_predictions_keep_mode_and_link_and_follow_no_planted_link(model, folder, spider, name):
    (folder / "precious").write_text("keep")
    (folder / f".{name}.part").symlink_to("precious")  # the name that was used once
    (folder / "deep").mkdir()
    target = folder / "deep" / name
    target.write_text("old")
    target.chmod(0o640)
    (folder / name).symlink_to(target)
    assert spider("predict", model, "ratings.csv", "--out", name)[0] == 0
    assert (folder / "precious").read_text() == "keep"
    assert (folder / name).is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert files_in(folder / "deep") == {name}
    chunks = sources.read(sources.source_by_name(name), ["user", "movie"])
    assert sum(len(chunk.rows) for chunk in chunks) == 1200


def test_predictions_go_to_files_only(model, folder, fails):
    os.mkfifo(folder / "pipe.csv")
    assert fails("predict", model, "ratings.csv", "--out", "pipe.csv") == (
        "spider: pipe.csv: exists and is not a regular file\n"
    )
    assert stat.S_ISFIFO(os.stat(folder / "pipe.csv").st_mode)


@pytest.mark.slow
def test_two_predictions_at_once_do_not_mix(model, folder):
    rows = {n: table(n, seed=n) for n in (2000, 3000)}
    for n, part in rows.items():
        (folder / f"{n}.csv").write_text(csv_text([*part, *([("", "", "")] * 300)]))
    more = ("--out", "out.csv", "--on-bad", "file")
    both = [started("predict", model, f"{n}.csv", *more) for n in rows]
    assert [(each.communicate(), each.returncode)[1] for each in both] == [0, 0]
    lines = (folder / "out.csv").read_text().splitlines()
    n = len(lines) - 1
    assert [line.split(",")[:2] for line in lines[1:]] == [[str(u), m] for u, m, _ in rows[n]]
    bad = [json.loads(line) for line in (folder / "out.rejects.jsonl").read_text().splitlines()]
    assert sorted((each["source"], each["row"]) for each in bad) == [
        (f"{n}.csv", n + 2 + place) for n in rows for place in range(300)
    ]
    assert not list(folder.glob(".*"))


def test_the_rejects_keep_mode_and_link_and_follow_no_planted_link(folder, spider):
    (folder / "bad.csv").write_text(csv_text([*table(300), (1, "", 3.0)]))
    (folder / "deep").mkdir()
    rejects = folder / "deep" / "r.jsonl"
    rejects.write_text('{"source": "x.csv", "row": 3, "reason": "old", "raw": ""}\n')
    rejects.chmod(0o640)
    (folder / "r.jsonl").symlink_to(rejects)
    (folder / "precious").write_text("keep")
    (folder / "deep" / ".r.jsonl.part").symlink_to(folder / "precious")
    fit = ("fit", "bad.csv", *FIT, "--on-bad", "file", "--rejects", "r.jsonl", "--force", "--quiet")
    assert spider(*fit)[0] == 0
    assert [json.loads(line)["row"] for line in rejects.read_text().splitlines()] == [302]
    assert (folder / "precious").read_text() == "keep"
    assert (folder / "r.jsonl").is_symlink()
    assert stat.S_IMODE(rejects.stat().st_mode) == 0o640


def test_what_takes_a_files_place_is_whole(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with contextlib.suppress(KeyError), replacing(path) as handle:
        handle.write(b"half")
        raise KeyError
    assert (files_in(tmp_path), path.read_text()) == ({"file"}, "old")
    with replacing(path) as handle:
        handle.write(b"new")
        handle.close()  # as arrow does
    assert (files_in(tmp_path), path.read_text()) == ({"file"}, "new")


# --- quiet pipes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["csv", "jsonl"])
def test_rows_of_a_quiet_pipe_are_learned_and_saved(folder, name):
    """Fewer than a first chunk, then a few more; the pipe stays open, and nothing else comes."""
    rows = table(60)
    header, *lines = csv_text(rows).splitlines(keepends=True)
    if name == "jsonl":
        records = (dict(zip(("user", "movie", "rating"), row, strict=True)) for row in rows)
        header, lines = "", [json.dumps(record) + "\n" for record in records]
    child = started(
        "fit", "-", *FIT, "--model", "m.spider", "--format", name, "--checkpoint-every", "0.1s", quiet=0.2
    )
    assert child.stdin
    for end, part in ((40, [header, *lines[:40]]), (45, lines[40:45]), (46, [lines[45], lines[46][:4]])):
        child.stdin.write("".join(part).encode())
        child.stdin.flush()
        eventually(lambda end=end: n_entries("m.spider") == end)
    _, err = child.communicate("".join([lines[46][4:], *lines[47:]]).encode(), timeout=300)
    assert (child.returncode, n_entries("m.spider")) == (0, 60)
    note = "note: - is quiet, so the scale is estimated from its first 40 values: if they are not "
    note += "representative, use --scaling"
    assert note in err.decode()
    model = spidertensor.SpiderRegressor(rank=2, hidden=(4,))
    for part in (rows[:40], rows[40:]):
        model.partial_fit([row[:2] for row in part], [row[2] for row in part])
    assert model.members_ == spidertensor.load("m.spider").members_


@pytest.mark.slow
def test_a_quiet_pipe_is_not_saved_again_and_again(folder):
    child = started(
        "fit", "-", *FIT, "--scaling", "3,1", "--model", "m.spider", "--checkpoint-every", "0.1s", quiet=0.2
    )
    assert child.stdin
    child.stdin.write(csv_text(table(300)).encode())
    child.stdin.flush()
    eventually(lambda: n_entries("m.spider") == 300)
    before = os.stat("m.spider").st_ino
    time.sleep(1)  # it is quiet five times
    assert os.stat("m.spider").st_ino == before
    _, err = child.communicate(timeout=300)
    assert (child.returncode, b"quiet" in err) == (0, False)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["fit", "predict"])
def test_a_pipe_that_does_not_wait_is_not_at_its_end(model, folder, command):
    """Some programs leave standard input non-blocking: a read then gives nothing, which is not the end."""
    text = csv_text(table(600, seed=3)).encode()
    arguments = {
        "fit": ("fit", "-", "--model", model, "--add"),
        "predict": ("predict", model, "-", "--out", "p.csv"),
    }
    output, end = os.pipe()
    os.set_blocking(output, False)
    child = subprocess.Popen([sys.executable, "-m", "spidertensor", *arguments[command]], stdin=output)
    os.close(output)
    for part in (text[:3000], text[3000:3007], text[3007:]):
        time.sleep(1)
        os.write(end, part)
    os.close(end)
    assert child.wait(300) == 0
    if command == "fit":
        assert n_entries(model) == 1800
    else:
        assert len((folder / "p.csv").read_text().splitlines()) == 601


# --- the same file again


def test_a_file_is_not_added_twice_by_accident(folder, spider, fails):
    rows = {name: table(9000, seed=seed) for seed, name in enumerate(["a", "b", "c"])}
    for name, part in rows.items():
        (folder / f"{name}.csv").write_text(csv_text(part))
    fit = ("--model", "m.spider", "--quiet")
    assert spider("fit", "a.csv", *FIT, *fit)[0] == 0
    for name in "bc":
        assert spider("fit", f"{name}.csv", *fit, "--add")[0] == 0
    before = (folder / "m.spider").read_bytes()
    (folder / "a.csv").rename("moved.csv")
    with open("b.csv", "a") as file:
        file.write(csv_text(table(10), header=""))
    for name in ("moved", "b", "c"):
        assert fails("fit", f"{name}.csv", *fit, "--add") == (
            f"spider: m.spider: already learned {name}.csv up to line 9,001: use --resume to continue "
            "after it, or --add --again to learn it once more\n"
        )
    assert (folder / "m.spider").read_bytes() == before
    assert "--again is for --add" in fails("fit", "moved.csv", *fit, "--resume", "--again")
    assert spider("fit", "b.csv", *fit, "--resume")[0] == 0  # an earlier one, which has grown
    assert n_entries("m.spider") == 27_010
    assert spider("fit", "moved.csv", *fit, "--add", "--again")[0] == 0
    assert n_entries("m.spider") == 36_010
    assert spider("fit", "c.csv", *fit, "--resume")[0] == 0
    assert n_entries("m.spider") == 36_010  # nothing new
    position = spidertensor.load("m.spider").position_
    assert [each["source"] for each in (position, *position["before"])] == ["c.csv", "moved.csv", "b.csv"]
    assert [each["row"] for each in (position, *position["before"])] == [9001, 9001, 9011]


def test_the_position_of_an_older_version(ratings, folder, spider, fails):
    spider("fit", "ratings.csv", *FIT, "--model", "m.spider", "--quiet")
    model = spidertensor.load("m.spider")
    for before in (None, 3, [{"source": 1}], [{"head": {}}, None]):
        model.save("m.spider", model.position_ | {"before": before})
        assert "already learned ratings.csv" in fails("fit", "ratings.csv", "--model", "m.spider", "--add")
        assert spider("fit", "ratings.csv", "--model", "m.spider", "--resume", "--quiet")[0] == 0


@pytest.mark.parametrize("how", ["Ctrl-C", "crash"])
def test_an_addition_that_was_stopped_goes_on(folder, spider, fails, monkeypatch, how):
    for seed, name in enumerate("ab"):
        (folder / f"{name}.csv").write_text(csv_text(table(3000, seed=seed)))
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1 << 12)
    spider("fit", "a.csv", *FIT, "--model", "m.spider", "--quiet")
    shutil.copy("m.spider", "whole.spider")
    learn, calls = Run.learn, []

    def stops(self, chunk, rejected):
        learn(self, chunk, rejected)
        calls.append(chunk)
        if len(calls) == 3 and how == "crash":
            raise OSError(errno.EIO, "Input/output error", "b.csv")
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    fit = ("--model", "m.spider", "--quiet")
    with monkeypatch.context() as patch:
        patch.setattr(Run, "learn", stops)
        assert spider("fit", "b.csv", *fit, "--add")[0] == (2 if how == "crash" else 130)
    assert 3000 < n_entries("m.spider") < 6000
    assert "use --resume to continue" in fails("fit", "b.csv", *fit, "--add")
    assert spider("fit", "b.csv", *fit, "--resume")[0] == 0
    assert spider("fit", "b.csv", "--model", "whole.spider", "--quiet", "--add")[0] == 0
    assert (folder / "m.spider").read_bytes() == (folder / "whole.spider").read_bytes()


# --- a disk that is full


def limited(size: int, *arguments) -> subprocess.CompletedProcess[str]:
    """The command, where no file may have more bytes: each write fails as on a disk that is full."""
    limit = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))"
    program = f"import resource, sys; {limit}; from spidertensor import cli; cli.main(sys.argv[1:])"
    return forked(*arguments, program=program)


def test_a_model_that_cannot_be_saved_is_named(ratings, folder, spider):
    spider("fit", "ratings.csv", *FIT, "--model", "m.spider", "--quiet")
    (folder / "more.csv").write_text(csv_text(table(300, seed=1)))
    before = (folder / "m.spider").read_bytes()
    failed = limited(4096, "fit", "more.csv", "--model", "m.spider", "--add", "--quiet")
    assert (failed.returncode, failed.stderr) == (2, "spider: m.spider: File too large\n")
    assert (folder / "m.spider").read_bytes() == before
    assert files_in(folder) == {"ratings.csv", "more.csv", "m.spider"}
    assert spider("fit", "more.csv", "--model", "m.spider", "--add", "--quiet")[0] == 0  # nothing was learned


@pytest.mark.slow
@pytest.mark.parametrize("name", OUTPUTS)
def test_predictions_that_cannot_be_written_are_named(model, folder, name):
    (folder / name).write_text("old")
    failed = limited(2048, "predict", model, "ratings.csv", "--out", name)
    assert (failed.returncode, failed.stderr) == (2, f"spider: {name}: File too large\n")
    assert (folder / name).read_text() == "old"
    assert files_in(folder) == {"ratings.csv", "m.spider", name}


def test_rejects_that_cannot_be_written_are_named(model, folder):
    (folder / "bad.csv").write_text(csv_text([*table(20), *([("", "x" * 200, 1)] * 300)]))
    failed = limited(60_000, "predict", model, "bad.csv", "--out", "out.csv", "--on-bad", "file")
    assert (failed.returncode, failed.stderr) == (2, "spider: out.rejects.jsonl: File too large\n")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(
    "command",
    [("predict", "m.spider", "ratings.csv"), ("info", "m.spider", "--json"), ("docs",), ("--version",)],
    ids=lambda command: command[0],
)
def test_standard_output_is_named(model, command, buffered, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", "" if buffered else "1")
    arguments = [sys.executable, "-W", "error", "-m", "spidertensor", *command]
    with open("/dev/full", "w") as full:
        failed = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (failed.returncode, failed.stderr) == (2, "spider: standard output: No space left on device\n")


def test_errors_of_reading_name_the_file(model, folder, monkeypatch):
    def fails_to_read(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(spidertensor.checkpoint, "_verified_header", fails_to_read)
    with pytest.raises(OSError, match="Input/output error") as caught:
        spidertensor.load("m.spider")
    assert caught.value.filename == "m.spider"
