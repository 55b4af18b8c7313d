"""What users write about columns: Value("city"), Number("age"), Many("genres", sep="|"), ...

All are immutable and know their JSON form. A bare name becomes `Undecided` until its first values are seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

MOST_RECENT = 1000  # nodes in a ring


@dataclass(frozen=True)
class Spec(ABC):
    """Base class: what is done with one or more columns of the input."""

    kind: ClassVar[str] = ""

    @property
    @abstractmethod
    def name(self) -> str:
        """Unique among the columns of a mode; also shown to users."""

    @property
    def parts(self) -> int:
        """How many columns this counts as when the prior variance is shared out."""
        return 1

    def to_json(self) -> dict[str, Any]:
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        own = {name: value for name, value in own.items() if (name, value) != ("most", None)}
        return {"kind": self.kind} | {k: list(v) if isinstance(v, tuple) else v for k, v in own.items()}


@dataclass(frozen=True)
class _OneColumn(Spec):
    column: str

    def __post_init__(self) -> None:
        _check_name(self.column, f"{type(self).__name__} needs the name of a column")

    @property
    def name(self) -> str:
        return self.column


@dataclass(frozen=True)
class Undecided(_OneColumn):
    """A column given by its name only: its first values decide what it is (deciding.py)."""

    kind: ClassVar[str] = "undecided"


@dataclass(frozen=True)
class Value(_OneColumn):
    """One node per value, such as a city, a maker or an age group.

    most: different values that the model keeps; by default a million
    """

    most: int | None = None
    kind: ClassVar[str] = "value"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_most(self)


@dataclass(frozen=True)
class Number(_OneColumn):
    """A number, such as a price or a temperature: close numbers share knots."""

    kind: ClassVar[str] = "number"


@dataclass(frozen=True)
class Many(_OneColumn):
    """Several values in a cell, such as genres or tags: a list, a set, a dict of weights, or a text to split.

    sep:  what separates the values of a text
    most: different values that the model keeps; by default a million, and never fewer than a cell can have
    """

    sep: str | None = None
    most: int | None = None
    kind: ClassVar[str] = "many"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sep is not None and not (isinstance(self.sep, str) and self.sep):
            raise ValueError(f'sep is the text between two values, as in sep="|", got {self.sep!r:.80}')
        _check_most(self)


@dataclass(frozen=True)
class Calendar(_OneColumn):
    """A time or a date: hour of the day, weekday, day of the year and a slow trend."""

    kind: ClassVar[str] = "calendar"

    @property
    def parts(self) -> int:
        return 4


@dataclass(frozen=True, init=False)
class Cross(Spec):
    """The combination of columns as one value, such as Cross("user", "app").

    most: different combinations that the model keeps; by default a million
    """

    columns: tuple[str, ...]
    most: int | None
    kind: ClassVar[str] = "cross"

    def __init__(self, *columns: str, most: int | None = None) -> None:
        for column in columns:
            _check_name(column, "Cross takes names of columns")
        if len(columns) < 2 or len(set(columns)) < len(columns):
            raise ValueError(
                f'Cross takes two or more different columns, as in Cross("a", "b"), got {columns!r:.200}'
            )
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "most", most)
        _check_most(self)

    @property
    def name(self) -> str:
        return "*".join(self.columns)


@dataclass(frozen=True)
class Recent(Spec):
    """The last n nodes of another mode that a node occurred with, such as the last films of a user."""

    mode: str
    n: int = 50
    kind: ClassVar[str] = "recent"

    def __post_init__(self) -> None:
        _check_name(self.mode, "Recent needs the name of another mode")
        if type(self.n) is not int or not 1 <= self.n <= MOST_RECENT:
            raise ValueError(f"n of Recent is a whole number from 1 to {MOST_RECENT}, got {self.n!r:.80}")

    @property
    def name(self) -> str:
        return f"recent({self.mode})"


@dataclass(frozen=True, init=False)
class Context:
    """A mode without an id: its columns describe the entry, such as Context("hour", Calendar("time"))."""

    columns: tuple[str | Spec, ...]

    def __init__(self, *columns: str | Spec) -> None:
        if not columns:
            raise ValueError('a Context needs at least one column, as in Context("hour")')
        object.__setattr__(self, "columns", columns)


KINDS: dict[str, type[Spec]] = {
    spec.kind: spec for spec in (Undecided, Value, Number, Many, Calendar, Cross, Recent)
}


def spec_of(written: Any) -> Spec:
    """What a user wrote for one column, as a Spec; ValueError if it is none."""
    if isinstance(written, str):
        return Undecided(written)
    if isinstance(written, Spec):
        return written
    if isinstance(written, Context):
        raise ValueError('a Context is a mode of its own: write modes={"when": Context("hour")}')
    raise ValueError(
        f"a column is a name or one of Value, Number, Many, Calendar, Cross, Recent, got {written!r:.200}"
    )


def spec_from_json(stored: Any) -> Spec:
    """The inverse of `Spec.to_json`. ValueError for anything it does not write."""
    if not isinstance(stored, Mapping) or stored.get("kind") not in KINDS:
        raise ValueError(f"not the description of a column: {stored!r:.200}")
    spec, own = KINDS[stored["kind"]], {key: value for key, value in stored.items() if key != "kind"}
    known = {field.name for field in fields(spec)}
    if not known - {"most"} <= own.keys() <= known:
        raise ValueError(f"not the description of a {spec.kind}: {stored!r:.200}")
    if spec is Cross:
        if not isinstance(own["columns"], list):
            raise ValueError("the columns of a cross are not a list")
        return Cross(*own["columns"], most=own.get("most"))
    return spec(**own)


def _check_name(name: Any, wanted: str) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"{wanted}, got {name!r:.80}")


def _check_most(spec: Value | Many | Cross) -> None:
    if spec.most is not None and not (type(spec.most) is int and 1 <= spec.most < 2**31):
        kind = type(spec).__name__
        raise ValueError(f"most of {kind} is a whole number from 1 to 2^31 - 1, got {spec.most!r:.80}")
