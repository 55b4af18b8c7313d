"""Every test lies in a room, and can be read there without another file of tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "study").rglob("test_*.py")])


def test_every_test_has_the_mark_of_its_room(request):
    for item in request.session.items:
        first, second, *_ = item.path.relative_to(ROOT).parts
        room = "study" if first == "study" else second
        assert [mark.name for mark in item.iter_markers(room)] == [room], item.nodeid


def test_every_room_is_known():
    folders = {path.parent for path in FILES}
    assert folders >= {ROOT / "tests" / "unit", ROOT / "study" / "tests"}
    assert all(folder.parent == ROOT / "tests" or folder == ROOT / "study" / "tests" for folder in folders)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_file_of_tests_imports_another(path):
    assert not re.search(r"^\s*(from|import) test_", path.read_text(encoding="utf-8"), re.MULTILINE)
