"""The position in a model file: what `spider fit` reads back from it, whoever has written it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from spidertensor.cli.errors import worded
from spidertensor.learner import position
from spidertensor.learner.errors import LearnerError
from spidertensor.sources import source_by_name
from spidertensor.sources.source import HEAD_BYTES

FILE = {
    "source": "a.csv", "head": {"bytes": 10, "sha256": "x"}, "row": 5, "bad": 1, "last": "y", "stream": None,
}  # fmt: skip
PIPE = FILE | {"source": "-", "head": None}
STREAM = FILE | {"source": "t", "head": {"stream": "t"}, "stream": {"0": 3}, "last": None}
WHOLE = FILE | {"version": 2, "value": "rating", "all_text": [True, False]}


def of(**changes: Any) -> Any:
    return position.checked(WHOLE | changes, 2)


@pytest.mark.parametrize("place", [FILE, PIPE, STREAM])
@pytest.mark.parametrize("texts", [None, [False, True]])
def test_what_fit_writes_is_a_position(place, texts):
    assert of(**place, all_text=texts) == WHOLE | place | {"all_text": texts}


def test_positions_of_all_versions_up_to_this_one_are_read():
    old = {name: each for name, each in WHOLE.items() if name != "version"}
    assert position.checked(old, 2) == old
    assert of(version=1)
    assert of(version=2)
    for later in (0, 3):
        with pytest.raises(LearnerError, match="newer version"):
            of(version=later)


@pytest.mark.parametrize("texts", [[True], [True, False, True], [1, 0], [True, None], "ab"])
def test_texts_are_a_truth_value_for_each_mode(texts):
    assert of(all_text=texts) is None


@pytest.mark.parametrize(
    "change",
    [
        {"row": 0, "bad": 0},
        {"row": 2**63 - 1},
        {"row": 5, "bad": 5},
        {"head": {"bytes": 0, "sha256": "x"}},
        {"head": {"bytes": HEAD_BYTES, "sha256": "x"}},
        {"last": None},
    ],
)
def test_possible_places(change):
    assert of(**change) is not None


@pytest.mark.parametrize("change", [{"row": 0, "bad": 0}, {"bad": 0}, {"bad": 5}, {"row": 2**63 - 1}])
def test_possible_places_in_a_stream(change):
    assert of(**(STREAM | change)) is not None


@pytest.mark.parametrize("place", [FILE, PIPE, STREAM])
@pytest.mark.parametrize(
    "change",
    [{"row": -1}, {"row": 2**63}, {"bad": -1}, {"row": 1.0}, {"bad": None}, {"row": "5"}, {"source": 3}],
)
def test_impossible_places(place, change):
    assert of(**(place | change)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"row": True},
        {"head": {"bytes": -1, "sha256": "x"}},
        {"head": {"bytes": HEAD_BYTES + 1, "sha256": "x"}},
        {"head": {"bytes": True, "sha256": "x"}},
        {"head": {"bytes": 10}},
        {"head": "x"},
        {"last": 3},
    ],
)
def test_impossible_places_in_a_file(change):
    assert of(**change) is None


@pytest.mark.parametrize("change", [{"row": 4, "bad": 5}, {"stream": None}, {"head": {"stream": 3}}])
def test_impossible_places_in_a_stream(change):
    assert of(**(STREAM | change)) is None


@pytest.mark.parametrize("stored", [None, 3, [], {}, {"value": "rating"}])
def test_what_is_no_position(stored):
    assert position.checked(stored, 2) is None


def test_places_are_the_latest_and_the_possible_ones_before():
    assert position.places(None) == []
    assert position.places(WHOLE) == [FILE]
    before = [STREAM, {"row": 3}, PIPE]
    assert position.places(WHOLE | {"before": before}) == [FILE, STREAM, PIPE]
    assert position.places(WHOLE | {"before": "nonsense"}) == [FILE]


def test_the_choice_about_missing_ids():
    for choice in ("error", "skip", "own"):
        assert position.missing_id(WHOLE | {"missing_id": choice}) == choice
    for stored in (None, WHOLE, WHOLE | {"missing_id": "x"}):
        assert position.missing_id(stored) == "error"


def test_bytes_of_predictions():
    for size in (0, 1, 2**63 - 1):
        assert position.predicted({"predictions": size}) == size
    for size in (None, -1, 2**63, 1.0, True, "1"):
        assert position.predicted({"predictions": size}) is None
    assert position.predicted({}) is None


def test_files_are_remembered_that_something_was_learned_from():
    another, unread = FILE | {"source": "b.csv"}, FILE | {"row": 0}
    known = [FILE, another, PIPE, unread, STREAM]
    assert position.others(known, FILE) == [another, STREAM]
    assert position.others(known, None) == [FILE, another, STREAM]
    # known by being the same place, not by being equal to it
    assert position.others([FILE, dict(FILE)], FILE) == [FILE]
    many = [FILE | {"row": row} for row in range(1, 1500)]
    assert position.others(many, None) == many[:1000]


def test_a_source_that_was_learned_is_found_and_not_added_again(tmp_path):
    (tmp_path / "a.csv").write_text("user,rating\n1,2\n")
    (tmp_path / "b.csv").write_text("user,rating\n1,3\n")
    a, b = (source_by_name(str(tmp_path / name)) for name in ("a.csv", "b.csv"))
    place = FILE | {"head": a.head()}
    assert position.find([FILE, place], a) is place
    assert position.find([FILE, place], b) is None
    assert position.find([place, PIPE], source_by_name("-")) is PIPE
    with pytest.raises(LearnerError) as caught:
        position.check_new(place, Path("m.spider"), a)
    assert re.search(r"already learned .*a\.csv up to line 5: use --resume", worded(caught.value))
    for fine in (None, PIPE, place | {"row": 0}):
        position.check_new(fine, Path("m.spider"), a)
