"""The modes of a model and their columns, as users write them in Python (`modes={...}`) or as one text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spidertensor.estimator.columns.specs import (
    Calendar,
    Context,
    Cross,
    Many,
    Number,
    Recent,
    Spec,
    Undecided,
    Value,
    spec_from_json,
    spec_of,
)

EXAMPLE = 'modes={"user": ["age"], "movie": []}'
_TEXT_EXAMPLE = "user+age,movie+genres,when=hour+time"
_RECENT = re.compile(r"recent\(([^(),]+)(?:,([0-9]+))?\)")
_OUTSIDE_BRACKETS = r"(?![^(]*\))"


@dataclass(frozen=True)
class Mode:
    """name: also its id column, if it has one. has_id: False for a Context, which describes the entry"""

    name: str
    has_id: bool
    columns: tuple[Spec, ...]


@dataclass(frozen=True)
class Schema:
    """The modes in order. ValueError if they contradict each other."""

    modes: tuple[Mode, ...]

    def __post_init__(self) -> None:
        if not self.modes:
            raise ValueError(f"at least one mode is needed: write {EXAMPLE}")
        names = [mode.name for mode in self.modes]
        for name in names:
            if not isinstance(name, str) or not name:
                raise ValueError(f"the name of a mode is a text, got {name!r:.80}: write {EXAMPLE}")
            if names.count(name) > 1:
                raise ValueError(f"the mode {name!r:.80} is there twice: give one of them another name")
        for mode in self.modes:
            self._check_mode(mode)

    def _check_mode(self, mode: Mode) -> None:
        if not (mode.has_id or mode.columns):
            raise ValueError(f'the Context {mode.name!r:.80} has no columns: write Context("hour")')
        names = [mode.name] if mode.has_id else []
        for spec in mode.columns:
            if spec.name in names:
                reason = f"the mode {mode.name!r:.80} uses the column {spec.name!r:.80} twice"
                raise ValueError(f"{reason}: leave one of them out")
            names.append(spec.name)
            if isinstance(spec, Recent):
                self._check_recent(mode, spec)
            if isinstance(spec, Cross):
                self._check_cross(spec)

    def _check_cross(self, spec: Cross) -> None:
        specs = (each for mode in self.modes for each in mode.columns)
        several = [each.name for each in specs if isinstance(each, Many) and each.sep is None]
        for part in spec.columns:
            if part in several:
                raise ValueError(
                    f"the Cross {spec.name!r:.80} has the column {part!r:.80} of several values, which "
                    "cannot be combined: leave it out, or cross a column with one of them"
                )

    def _check_recent(self, mode: Mode, spec: Recent) -> None:
        others = [other.name for other in self.modes if other.has_id and other != mode]
        if not mode.has_id:
            raise ValueError(
                f"{mode.name!r:.80} is a Context, which has no nodes to keep recent ones for: "
                f"put Recent({spec.mode!r:.80}) into a mode with an id"
            )
        if spec.mode not in others:
            shown = ", ".join(map(repr, others)) or "there are none"
            raise ValueError(f"Recent({spec.mode!r:.80}) needs another mode that has an id ({shown:.200})")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(mode.name for mode in self.modes)

    def number_of(self, mode: str | int) -> int:
        """The number of a mode with ids, given by name or number."""
        number = self.names.index(mode) if mode in self.names else mode
        if type(number) is not int or not 0 <= number < len(self.modes) or not self.modes[number].has_id:
            shown = ", ".join(each.name for each in self.modes if each.has_id)
            raise ValueError(f"no mode {mode!r:.80} with ids: there are {shown}")
        return number

    @property
    def inputs(self) -> tuple[str, ...]:
        """All columns of the input that the schema uses, ids first, without duplicates."""
        ids = [mode.name for mode in self.modes if mode.has_id]
        used = [name for mode in self.modes for spec in mode.columns for name in inputs_of(spec)]
        return tuple(dict.fromkeys(ids + used))

    def to_modes(self) -> dict[str, Any]:
        """The parameter `modes` that `parse` reads as this schema."""
        modes: dict[str, Any] = {}
        for mode in self.modes:
            columns = [spec.name if isinstance(spec, Undecided) else spec for spec in mode.columns]
            modes[mode.name] = columns if mode.has_id else Context(*columns)
        return modes

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {"name": mode.name, "id": mode.has_id, "columns": [spec.to_json() for spec in mode.columns]}
            for mode in self.modes
        ]

    @classmethod
    def from_json(cls, stored: Any) -> Schema:
        """The inverse of `to_json`. ValueError for anything it does not write."""
        if not isinstance(stored, list):
            raise ValueError("the modes are not a list")
        modes = []
        for mode in stored:
            if not isinstance(mode, dict) or mode.keys() != {"name", "id", "columns"}:
                raise ValueError(f"not the description of a mode: {mode!r:.200}")
            if type(mode["id"]) is not bool or not isinstance(mode["columns"], list):
                raise ValueError(f"not the description of a mode: {mode!r:.200}")
            modes.append(Mode(mode["name"], mode["id"], tuple(map(spec_from_json, mode["columns"]))))
        return cls(tuple(modes))

    @classmethod
    def parse(cls, modes: Any) -> Schema:
        """The parameter `modes`: {name: columns of its nodes, or a Context}."""
        if isinstance(modes, Schema):
            return modes
        if not isinstance(modes, Mapping) or not modes:
            raise ValueError(f"modes is a dict with at least one mode, got {modes!r:.80}: write {EXAMPLE}")
        return cls(tuple(_mode_of(name, written) for name, written in modes.items()))

    @classmethod
    def parse_text(cls, text: str, kinds: Mapping[str, str] | None = None) -> Schema:
        """The short form of the command line: 'user+age,movie+genres,when=hour+time'.

        Inside a mode, `a*b` is a Cross and `recent(movie,50)` a Recent; `name=a+b` is a Context.
        kinds: column -> value, number, many, many:SEP or calendar
        """
        kinds = dict(kinds or {})
        found = [_mode_of_text(part.strip(), kinds) for part in re.split("," + _OUTSIDE_BRACKETS, text)]
        schema = cls(tuple(found))
        if unused := sorted(kinds.keys() - set(schema.inputs)):
            raise ValueError(f"no mode has the column {unused[0]!r:.80}, whose kind is given")
        return schema


def inputs_of(spec: Spec) -> tuple[str, ...]:
    """The columns of the input that a spec reads."""
    if isinstance(spec, Cross):
        return spec.columns
    return () if isinstance(spec, Recent) else (spec.name,)


def _mode_of(name: Any, written: Any) -> Mode:
    if isinstance(written, Context):
        return Mode(name, False, tuple(map(spec_of, written.columns)))
    if written is None:
        return Mode(name, True, ())
    if isinstance(written, str | Spec):
        return Mode(name, True, (spec_of(written),))
    if isinstance(written, list | tuple):
        return Mode(name, True, tuple(map(spec_of, written)))
    raise ValueError(
        f"the columns of the mode {name!r:.80} are a list or a Context, got {written!r:.80}: write {EXAMPLE}"
    )


def _mode_of_text(text: str, kinds: Mapping[str, str]) -> Mode:
    name, context, rest = text.partition("=")
    if context:
        items = rest.split("+") if rest.strip() else []
    else:
        name, *items = text.split("+")
    name, items = name.strip(), [item.strip() for item in items]
    if not name or not all(items) or any(mark in name for mark in "*()"):
        raise ValueError(f"cannot read the mode {text!r:.80}: write, for instance, {_TEXT_EXAMPLE}")
    return Mode(name, not context, tuple(_spec_of_text(item, kinds) for item in items))


def _spec_of_text(item: str, kinds: Mapping[str, str]) -> Spec:
    if match := _RECENT.fullmatch(item):
        mode, n = match.groups()
        return Recent(mode.strip(), **({"n": int(n)} if n else {}))
    if "*" in item:
        return Cross(*(part.strip() for part in item.split("*")))
    if "(" in item or ")" in item:
        raise ValueError(f"cannot read {item!r:.80}: write recent(movie,50)")
    return _of_kind(item, kinds[item]) if item in kinds else Undecided(item)


def _of_kind(column: str, kind: str) -> Spec:
    plain = {"value": Value, "number": Number, "many": Many, "calendar": Calendar}
    if kind in plain:
        return plain[kind](column)
    if kind.startswith("many:") and kind != "many:":
        return Many(column, sep=kind.removeprefix("many:"))
    raise ValueError(
        f"unknown kind {kind!r:.80} of the column {column!r:.80}: "
        "write value, number, many, many:SEP or calendar"
    )
