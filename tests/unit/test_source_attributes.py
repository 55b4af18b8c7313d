"""Columns beside the ids: read from every format, and typed by one rule."""

from __future__ import annotations

import json
from datetime import date, datetime

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from spidertensor.sources import SourceError, read, source_by_name
from spidertensor.sources.attributes import typed, with_types
from spidertensor.sources.messages import FORMATS
from spidertensor.sources.source import Wanted
from spidertensor.spider.likelihoods import GAUSSIAN

CSV, JSONL = source_by_name("-", "csv"), source_by_name("-", "jsonl")


def cells(*texts) -> np.ndarray:
    return np.fromiter(texts, object, len(texts))


def typed_one(column, kind="undecided", source=CSV):
    found, wrong = typed({"a": column}, {"a": kind}, source)
    return found["a"].tolist(), wrong


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        (("1", "2", "-3"), [1, 2, -3]),
        (("1", None, "3"), [1, None, 3]),
        (("1", "2.5", "1e3"), [1.0, 2.5, 1000.0]),
        (("1", "012"), [1, "012"]),  # codes, such as postal codes: read as they will be once that is decided
        (("1", "war"), [1, "war"]),  # as with ids
        (("war", None), ["war", None]),
        (("2024-01-31", "2024-02-01"), ["2024-01-31", "2024-02-01"]),
        ((None, None), [None, None]),
    ],
)
def test_texts_of_an_undecided_column(texts, wanted):
    found, wrong = typed_one(cells(*texts))
    assert found == wanted
    assert list(map(type, found)) == list(map(type, wanted))
    assert wrong == {}


def test_texts_of_a_decided_column_are_read_one_by_one():
    assert typed_one(cells("1", "4.0", "042", "x", None), "value") == ([1, "4.0", "042", "x", None], {})
    assert typed_one(cells("1|2", None), "many") == (["1|2", None], {})
    found, wrong = typed_one(cells("7", "x", "inf", None, "042"), "number")
    assert (found[0], found[4]) == (7.0, 42.0)
    assert np.isnan(found[3])
    assert wrong == {1: "a 'x' is not a number", 2: "a is infinite"}
    found, wrong = typed_one(cells("2024-01-31", "2024-01-31T10:00", "1700000000", "x", None), "calendar")
    assert found == [date(2024, 1, 31), datetime(2024, 1, 31, 10), 1.7e9, None, None]
    assert wrong == {3: "a 'x' is not a time"}


def test_a_decimal_comma():
    assert typed_one(cells("1,5", "2"), source=source_by_name("-", "csv", decimal=","))[0] == [1.5, 2.0]


def test_cells_of_typed_sources_stay_as_they_are():
    mixed = cells(1, 2.5, None, "x", [1], float("inf"))
    assert typed_one(mixed, source=JSONL) == (mixed.tolist(), {})
    wrong = typed_one(mixed, "number", JSONL)[1]
    assert wrong == {3: "a 'x' is not a number", 4: "a [1] is not a number", 5: "a is infinite"}
    assert typed_one(np.array([1.0, np.inf, np.nan]), "number", JSONL)[1] == {1: "a is infinite"}


def files(folder):
    rows = [{"user": 1, "tags": ["a", "b"], "age": 3.5, "value": 2.0}, {"user": 2, "age": None, "value": 3.0}]
    (folder / "r.csv").write_text("user,tags,age,value\n1,a|b,3.5,2\n2,,,3\n")
    (folder / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(pa.Table.from_pylist(rows), folder / "r.parquet")
    return [folder / f"r.{ending}" for ending in ("csv", "jsonl", "parquet")]


def test_every_format_has_attributes(tmp_path):
    for path in files(tmp_path):
        for keep in (False, True):
            source = source_by_name(str(path))
            (chunk,) = read(source, ["user"], "value", attributes=["age", "tags", "other"], keep=keep)
            chunk = with_types(chunk, {}, source, ["user"])
            assert chunk.columns[0].tolist() == [1, 2]
            age, tags = (chunk.attributes[name].tolist() for name in ("age", "tags"))
            assert age[0] == 3.5
            assert age[1] is None or np.isnan(age[1])
            assert tags in (["a|b", None], [["a", "b"], None])
            assert chunk.attributes.get("other", np.array([None])).tolist()[0] is None


def test_needed_attributes_must_be_there(tmp_path):
    for path in files(tmp_path):
        source = source_by_name(str(path))
        if path.suffix != ".jsonl":  # whose rows may differ
            with pytest.raises(SourceError, match="no column 'other'"):
                list(read(source, ["user"], "value", attributes=["other"], needed=["other"]))
        with pytest.raises(SourceError, match="named twice"):
            list(read(source, ["user"], "value", attributes=["value"]))


def test_bad_cells_are_bad_rows(tmp_path):
    (tmp_path / "r.csv").write_text("user,age,value\n1,3,2\n,4,2\n3,old,2\n4,5,2\n")
    source = source_by_name(str(tmp_path / "r.csv"))
    (chunk,) = read(source, ["user"], "value", attributes=["age"])
    chunk = with_types(chunk, {"age": "number"}, source, ["user"])
    assert chunk.rows.tolist() == [2, 5]
    assert chunk.attributes["age"].tolist() == [3.0, 5.0]
    assert [(each.row, each.reason) for each in chunk.bad] == [
        (3, "user is missing"),
        (4, "age 'old' is not a number"),
    ]
    assert chunk.bad[1].raw == {"user": 3, "age": "old"}


@pytest.mark.parametrize("kind", ["json", "csv", "fields"])
def test_messages_have_attributes(kind):
    wanted = Wanted(["user"], None, GAUSSIAN, [False], False, attributes=["age"])
    messages = {
        "json": [b'{"user": 1, "age": 3}', b'{"user": 2}', b"{}}"],
        "csv": [b"1,3", b"2,", b"1,2,3"],
        "fields": [[b"user", b"1", b"age", b"3"], [b"user", b"2"], [b"age", b"3"]],
    }[kind]
    parsed = FORMATS[kind].cutter(wanted, ["user", "age"])(messages, 10)
    assert parsed.rows.tolist() == [11, 12]
    assert [each.row for each in parsed.bad] == [13]
    age = parsed.attributes["age"]
    assert (age if isinstance(age, list) else age.to_pylist())[0] in (3, "3")
    assert len(age) == 2
