"""The file of answers by itself."""

from __future__ import annotations

import contextlib
import sqlite3
import zlib

import pytest

pytest.importorskip("orjson")

from spidertensor.service.answers import Answer, Answers

BEFORE_SEQUENCES = """
    create table answers (
        number integer primary key, key text not null unique, digest blob not null, answer blob not null
    );
    create table scores (sequence integer not null, state blob not null);
    create table about (identity text not null);
    insert into about values ('a')
"""


def test_answers_of_requests_that_the_model_does_not_have_are_dropped(tmp_path):
    with contextlib.closing(Answers(tmp_path / "answers", "a", 0)) as answers:
        for n in range(1, 5):
            answers.add(f"{n}", Answer(n, b"digest", b"{}"))
        answers.write()
        answers.write_scores(4, b"scores")
    with contextlib.closing(Answers(tmp_path / "answers", "a", 2)) as answers:
        assert [answers.find(f"{n}") is not None for n in range(1, 5)] == [True, True, False, False]
        assert answers.scores(4) is None
    with contextlib.closing(Answers(tmp_path / "answers", "another", 4)) as answers:
        assert answers.find("1") is None


def test_a_file_from_before_is_read_and_written(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "answers")) as file:
        file.executescript(BEFORE_SEQUENCES)
        file.execute("insert into answers values (1, 'old', ?, ?)", (b"digest", zlib.compress(b"{}")))
        file.commit()
    with contextlib.closing(Answers(tmp_path / "answers", "a", 2)) as answers:
        assert answers.find("old") == Answer(0, b"digest", b"{}")
        answers.add("new", Answer(3, b"digest", b"[]"))
        answers.write()
    with contextlib.closing(Answers(tmp_path / "answers", "a", 3)) as answers:
        assert answers.find("old") == Answer(0, b"digest", b"{}")
        assert answers.find("new") == Answer(3, b"digest", b"[]")
