"""`spider fit --keep` and `spider rollback`: the model of before a run, whatever interrupts them."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import FIT, csv_text, n_entries, table
from spidertensor.cli import kept
from spidertensor.writing import replacing

pytestmark = pytest.mark.usefixtures("folder", "warm_kernels")
ROWS = table(400)


def grown(n: int) -> None:
    Path("ratings.csv").write_text(csv_text(ROWS[:n]))


def numbers() -> list[int]:
    return list(kept.versions(Path("m.spider")))


@pytest.fixture
def run(spider, folder):
    def call(n: int, *options: str) -> None:
        grown(n)
        assert spider("fit", "ratings.csv", *FIT, "--model", "m.spider", "--quiet", *options)[0] == 0

    return call


def test_the_models_of_before_the_last_runs_are_kept(run, spider):
    run(100, "--keep", "2")
    assert numbers() == []  # there was none before
    for n in (150, 200, 250):
        run(n, "--keep", "2", "--resume")
    assert [n_entries(f"m.spider.kept-{n}") for n in numbers()] == [150, 200]
    assert numbers() == [2, 3]
    run(250, "--keep", "2", "--resume")  # nothing new was learned
    assert numbers() == [2, 3]
    run(300, "--resume")
    assert (numbers(), n_entries("m.spider")) == ([2, 3], 300)
    listed = json.loads(spider("rollback", "m.spider", "--list", "--json")[1])["versions"]
    assert [(each["version"], each["entries"], each["row"]) for each in listed] == [
        (2, 150, 151),
        (3, 200, 201),
    ]
    assert "200 entries, row 201 of ratings.csv" in spider("rollback", "m.spider", "--list")[1]


def test_rollback_goes_back_and_resume_learns_the_rows_again(run, spider, fails):
    run(100)
    run(250, "--resume", "--keep", "5")
    whole = Path("m.spider").read_bytes()
    code, out, _ = spider("rollback", "m.spider")
    assert (code, n_entries("m.spider")) == (0, 100)
    assert "restored version 1 of " in out
    assert "100 entries, row 101 of ratings.csv; the replaced model is version 2" in out
    run(250, "--resume", "--keep", "5")
    assert Path("m.spider").read_bytes() == whole
    assert [n_entries(f"m.spider.kept-{n}") for n in numbers()] == [100, 250, 100]
    assert json.loads(spider("rollback", "m.spider", "--to", "1", "--json")[1])["replaced"] == 2
    assert (n_entries("m.spider"), numbers()) == (100, [1, 2, 3])
    assert "no version 9, only: 1, 2, 3" in fails("rollback", "m.spider", "--to", "9")


def test_a_second_rollback_undoes_the_first(run, spider):
    run(100)
    run(200, "--resume", "--keep", "5")
    for wanted in (100, 200, 100, 200):
        assert spider("rollback", "m.spider")[0] == 0
        assert (n_entries("m.spider"), numbers()) == (wanted, [1, 2])


def test_force_keeps_the_model_that_it_replaces(run, spider):
    run(100)
    run(50, "--force", "--keep", "1")
    assert n_entries("m.spider") == 50
    spider("rollback", "m.spider")
    assert n_entries("m.spider") == 100


def test_nothing_to_go_back_to(run, spider, fails):
    run(50)
    assert "no earlier versions; spider fit --keep N" in fails("rollback", "m.spider")
    assert "no earlier versions" in spider("rollback", "m.spider", "--list")[1]
    assert "only one of" in fails("rollback", "m.spider", "--list", "--to", "1")
    os.link("m.spider", "m.spider.kept-1")
    assert "no other version is kept" in fails("rollback", "m.spider")
    Path("m.spider").unlink()  # removed by mistake
    assert json.loads(spider("rollback", "m.spider", "--json")[1])["replaced"] is None
    assert n_entries("m.spider") == 50


def test_a_damaged_version_changes_nothing(run, fails):
    run(50)
    Path("m.spider.kept-1").write_bytes(Path("m.spider").read_bytes()[:-1])
    before = Path("m.spider").read_bytes()
    assert "kept-1: truncated or damaged" in fails("rollback", "m.spider")
    assert (Path("m.spider").read_bytes(), numbers()) == (before, [1])


def test_only_versions_are_ever_removed(run):
    run(50)
    for name in ("m.spider.kept-0", "m.spider.kept-x", "m.spider.kept-1.csv", "other.spider.kept-1"):
        Path(name).write_text("mine")
    run(60, "--resume", "--keep", "1")
    run(70, "--resume", "--keep", "1")
    assert numbers() == [2]
    assert len(list(Path().glob("*kept*"))) == 5


def test_versions_stand_beside_the_file_that_a_link_points_to(folder):
    (folder / "there").mkdir()
    (folder / "there" / "m.spider").write_bytes(b"one")
    (folder / "link").symlink_to("there/m.spider")
    kept.before_run(Path("link"), 3)
    assert (folder / "there" / "m.spider.kept-1").read_bytes() == b"one"
    assert list(kept.versions(Path("link"))) == [1]


def test_writing_into_the_model_does_not_change_a_version(folder):
    for n in (1, 2):
        kept.before_run(Path("m.spider"), 5)
        with replacing("m.spider") as file:
            file.write(b"%d" % n)
    kept.go_back(Path("m.spider"), Path("m.spider.kept-1"))
    Path("m.spider").write_bytes(b"3")  # as cp does
    assert Path("m.spider.kept-1").read_bytes() == b"1"


def test_without_hard_links_versions_are_copies(folder, monkeypatch):
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", link)
    Path("m.spider").write_bytes(b"one")
    os.utime("m.spider", (1e9, 1e9))
    kept.before_run(Path("m.spider"), 3)
    assert Path("m.spider.kept-1").read_bytes() == b"one"
    assert Path("m.spider.kept-1").stat().st_mtime == 1e9


KILLED = """
import json, os, signal, sys
from pathlib import Path

sys.path[:0] = {path!r}
from spidertensor.cli import kept
from spidertensor.writing import replacing

model = Path("m.spider")

def act():
    if sys.argv[1] == "fit":
        kept.before_run(model, 2)
        with replacing(model) as file:
            file.write(b"new")
    else:
        kept.go_back(model, kept.versions(model)[1])

def counting(call):
    def counted(*arguments, **options):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    return counted

def there():
    return model.read_text(), [path.read_text() for path in kept.versions(model).values()]

done, point = 1, 0
while done:
    point += 1
    for path in Path().iterdir():
        path.unlink()
    for name in ("m.spider.kept-1", "m.spider.kept-2", "m.spider"):
        Path(name).write_text(name)
    if not (child := os.fork()):
        left = point
        for name in ("link", "replace", "unlink", "fsync", "close", "open"):
            setattr(os, name, counting(getattr(os, name)))
        act()
        os._exit(0)
    done = os.waitpid(child, 0)[1]
    killed = there()
    act()
    print(json.dumps([killed, there()]))
"""


@pytest.mark.parametrize("what", ["fit", "rollback"])
def test_a_kill_at_any_instant_leaves_a_whole_model_and_what_was_there(what, folder):
    """Killed before each call that changes the disk; the same command afterwards succeeds."""
    command = [sys.executable, "-c", KILLED.format(path=sys.path), what]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    points = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(points) > 6
    wanted = "new" if what == "fit" else "m.spider.kept-1"
    assert {model for (model, _), _ in points} == {"m.spider", wanted}  # killed before and after the rename
    for (model, versions), (model_then, versions_then) in points:
        assert "m.spider" in (model, *versions)
        assert model_then == wanted
        assert "m.spider" in versions_then
        assert len(versions_then) <= (2 if what == "fit" else 3)
