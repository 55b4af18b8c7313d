"""Schema: what users write about their columns, in Python and as one text."""

from __future__ import annotations

import json

import pytest

from spidertensor.estimator.columns import (
    Calendar,
    Context,
    Cross,
    Many,
    Mode,
    Number,
    Recent,
    Schema,
    Value,
)
from spidertensor.estimator.columns.specs import Undecided

MODES = {
    "user": ["age", Value("gender"), Recent("movie", 20)],
    "movie": [Many("genres", sep="|"), Number("year")],
    "when": Context("hour", Calendar("time")),
    "pair": Context(Cross("user", "movie")),
}


def test_what_is_written_is_what_is_kept():
    schema = Schema.parse(MODES)
    assert schema.names == ("user", "movie", "when", "pair")
    assert schema.modes[0] == Mode("user", True, (Undecided("age"), Value("gender"), Recent("movie", 20)))
    assert schema.modes[2] == Mode("when", False, (Undecided("hour"), Calendar("time")))
    assert schema.inputs == ("user", "movie", "age", "gender", "genres", "year", "hour", "time")
    assert Schema.parse(schema) is schema


def test_json_makes_the_round_trip():
    schema = Schema.parse(MODES)
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


def test_short_forms():
    assert Schema.parse({"a": None, "b": "x", "c": Number("y"), "d": ()}) == Schema.parse(
        {"a": [], "b": ["x"], "c": [Number("y")], "d": []}
    )
    assert Recent("movie").n == 50
    assert Schema.parse({"only": Context("x")}).inputs == ("x",)


def test_the_text_of_the_command_means_the_same():
    text = "user+age+gender+recent(movie,20) , movie + genres+year,when=hour+time,pair=user*movie"
    kinds = {"gender": "value", "genres": "many:|", "year": "number", "time": "calendar"}
    assert Schema.parse_text(text, kinds) == Schema.parse(MODES)
    assert Schema.parse_text("a,b+recent(a)+t", {"t": "many"}) == Schema.parse(
        {"a": [], "b": [Recent("a"), Many("t")]}
    )


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: Schema.parse({}), "at least one mode"),
        (lambda: Schema.parse([]), "modes is a dict"),
        (lambda: Schema.parse({"": []}), "name of a mode"),
        (lambda: Schema.parse({3: []}), "name of a mode"),
        (lambda: Schema.parse({"a": 3}), "a list or a Context"),
        (lambda: Schema.parse({"a": [3]}), "a column is a name or one of"),
        (lambda: Schema.parse({"a": [Context("x")]}), "a mode of its own"),
        (lambda: Schema.parse({"a": ["x", Number("x")]}), "'x' twice"),
        (lambda: Schema.parse({"a": ["a"]}), "'a' twice"),
        (lambda: Schema.parse({"a": [Recent("b"), Recent("b", 3)], "b": []}), "twice"),
        (lambda: Schema.parse({"a": [Recent("b")]}), "another mode that has an id"),
        (lambda: Schema.parse({"a": [Recent("a")], "b": []}), r"another mode that has an id \('b'\)"),
        (lambda: Schema.parse({"a": [Recent("b")], "b": Context("x")}), "another mode that has an id"),
        (lambda: Schema.parse({"a": [], "b": Context(Recent("a"))}), "into a mode with an id"),
        (lambda: Context(), "at least one column"),
        (lambda: Recent("b", 0), "from 1 to 1000"),
        (lambda: Recent("b", 1.5), "from 1 to 1000"),
        (lambda: Recent("b", True), "from 1 to 1000"),
        (lambda: Recent(3), "another mode"),
        (lambda: Value(""), "Value needs the name of a column"),
        (lambda: Many("x", sep=""), "sep is the text between"),
        (lambda: Cross("x"), "two or more different columns"),
        (lambda: Cross("x", "x"), "two or more different columns"),
        (lambda: Cross("x", 3), "names of columns"),
        (lambda: Schema.parse_text(""), "cannot read the mode"),
        (lambda: Schema.parse_text("a,a"), "'a' is there twice"),
        (lambda: Schema.parse_text("a++b"), "cannot read the mode"),
        (lambda: Schema.parse_text("a*b"), "cannot read the mode"),
        (lambda: Schema.parse_text("a,when="), "has no columns"),
        (lambda: Schema.parse_text("a+recent(b"), "recent"),
        (lambda: Schema.parse_text("a+recent(b,x),b"), "recent"),
        (lambda: Schema.parse_text("a+recent(b,0),b"), "from 1 to 1000"),
        (lambda: Schema.parse_text("a+x", {"y": "number"}), "no mode has the column 'y'"),
        (lambda: Schema.parse_text("a+x", {"x": "numbers"}), "write value, number, many"),
        (lambda: Schema.parse_text("a+x", {"x": "many:"}), "write value, number, many"),
    ],
)
def test_every_mistake_says_what_to_write(write, message):
    with pytest.raises(ValueError, match=message):
        write()
