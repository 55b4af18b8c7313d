"""Check what users pass as X and y, once, and convert it: ids in columns, values as numbers.

X --columns--> Columns, one column of ids per mode --ids.to_index--> (n, K) node numbers
y --values---> (n,) floats; labels.py does this for labels

"row" is a row of X or y, counted from 0.
"""

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.faults import EntryError
from spidertensor.spider.likelihoods.base import Likelihood

Column = NDArray[Any] | Sequence[Any]

# Not values, although float() accepts them: it parses texts, drops imaginary parts and counts nanoseconds.
NO_NUMBERS = (str, bytes, np.complexfloating, np.datetime64, np.timedelta64)


@dataclass(frozen=True)
class Columns:
    """Entries in columns: the ids of each mode, equally many, and the names of the modes if known.

    `columns` converts every input to this. Callers that already have columns, such as file readers, pass it
    as X to avoid a 2-D array.
    """

    ids: Sequence[Column | None]  # None for a mode without ids
    names: tuple[str, ...] | None = None
    given: Mapping[str, Column] = field(default_factory=dict)  # all columns, for a model with attributes

    @property
    def n_entries(self) -> int:
        column = next((each for each in (*self.ids, *self.given.values()) if each is not None), ())
        return len(column)


def columns(X: Any, names: Sequence[str] | None = None, width: int | None = None) -> Columns:
    """X as one column of ids per mode.

    X:     a 2-D array (or something convertible), a list of entries, an eager data frame (pandas, polars,
           pyarrow) or Columns
    names: column names of the first fit, by which named columns are matched
    width: number of modes, if known
    """
    width = width if names is None else len(names)
    if isinstance(X, np.ma.MaskedArray):
        X = X.tolist()  # a masked id becomes None: missing
    if isinstance(X, list | tuple):
        return Columns(_transpose(X, width))
    if isinstance(X, Columns):
        found = _given_columns(X, names)
    elif isinstance(X, np.ndarray):
        found = _array_columns(X, f"shape {X.shape}")
    elif (series := _series(X)) is not None:
        found = _frame_columns(series, names)
    elif "sparse" in type(X).__module__:
        raise EntryError("sparse input is not supported: X holds one id per mode, not the tensor")
    elif hasattr(X, "__array__"):
        array = np.asarray(X)
        found = _array_columns(array, f"a {type(X).__name__} of shape {array.shape}")
    else:
        raise _not_2d(f"{type(X).__name__}, not an array, list or eager frame")
    if width is not None and len(found.ids) != width:
        raise wrong_width(width, len(found.ids))
    return found


def named_columns(X: Any, modes: Sequence[tuple[str, bool]], used: Collection[str]) -> Columns:
    """X for a model with attributes: the id column of each mode, and all columns that are used, by name.

    X:     a dict of columns, a list of dicts, an eager data frame, Columns; or ids alone, as in `columns`
    modes: the name of each mode, and whether it has ids
    """
    names, wanted = tuple(name for name, _ in modes), [name for name, has_id in modes if has_id]
    table = _named(X, wanted, used)
    if missing := [name for name in wanted if name not in table]:
        raise EntryError(f"missing columns: {', '.join(missing)} (found: {', '.join(names_of(X) or table)})")
    lengths = {name: len(column) for name, column in table.items()}
    if len(set(lengths.values())) > 1:
        raise EntryError(f"columns differ in length: {lengths!s:.200}")
    return Columns([table[name] if has_id else None for name, has_id in modes], names, table)


def by_name_of(table: Any, ids: str, used: Collection[str]) -> dict[str, Column]:
    """A table of attributes, one row per node, as the columns of `used` by name.

    ids: the column of the nodes' ids
    """
    if isinstance(table, list | tuple) and table and not isinstance(table[0], Mapping):
        raise EntryError("a table of attributes is a data frame or a dict of columns, not a plain list")
    found = _named(table, [ids], used)
    if ids not in found:
        raise EntryError(f"missing columns: {ids} (found: {', '.join(names_of(table) or found)})")
    if len({len(column) for column in found.values()}) > 1:
        raise EntryError("columns differ in length")
    return found


def _named(X: Any, ids: Sequence[str], used: Collection[str]) -> dict[str, Column]:
    """The columns of X that are used, by name; without names, X has the ids alone."""
    if isinstance(X, Mapping):
        return {str(name): _column(name, column) for name, column in X.items() if name in used}
    if isinstance(X, list | tuple) and X and all(isinstance(row, Mapping) for row in X):
        names = dict.fromkeys(str(name) for row in X for name in row if name in used)
        return {name: [row.get(name) for row in X] for name in names}
    if isinstance(X, Columns) and X.names is not None:
        table = dict(zip(X.names, X.ids, strict=True)) | dict(X.given)
        return {name: column for name, column in table.items() if column is not None and name in used}
    plain = isinstance(X, list | tuple | np.ndarray | Columns)
    if not plain and (series := _series(X)) is not None:
        found = _frame_columns({name: series[name] for name in ids if name in series}, None)
        table = dict(zip(found.names or (), found.ids, strict=True))
        others = {name: _cells(series[name]) for name in used if name in series and name not in table}
        return table | others  # pyright: ignore[reportReturnType]
    return dict(zip(ids, columns(X, width=len(ids)).ids, strict=True))  # pyright: ignore[reportReturnType]


def names_of(X: Any) -> list[str]:
    """The names of all columns of X that has any, also of those that are not used."""
    if isinstance(X, Columns):
        return [*(X.names or ()), *X.given]
    rows = [X] if isinstance(X, Mapping) else X if isinstance(X, list | tuple) else []
    names = [name for row in rows if isinstance(row, Mapping) for name in row]
    return list(dict.fromkeys(map(str, names or (() if rows else _series(X) or ()))))


def _column(name: Any, column: Any) -> Column:
    if isinstance(column, str | bytes | Mapping) or not hasattr(column, "__len__"):
        reason = f"a column must be a list or an array, got {type(column).__name__}"
        remedy = "for a single entry pass a list with one dict, or use learn_one and predict_one"
        raise EntryError(reason, column=str(name), remedy=remedy)
    return without_scalars(column)


def without_scalars(column: Any) -> Any:
    """An array of pyarrow as a list, because its elements are no plain objects; all else as it is."""
    return column.to_pylist() if hasattr(column, "to_pylist") else column


def _cells(series: Any) -> Column:
    """The cells of a column of a data frame, as an array where that loses nothing."""
    import narwhals as nw

    dtype = series.dtype
    whole = dtype.is_integer() and dtype not in (nw.Int128, nw.UInt128) and not series.null_count()
    naive = isinstance(dtype, nw.Datetime) and dtype.time_zone is None
    return series.to_numpy() if whole or naive or dtype.is_float() else series.to_list()


def by_name(table: Any, what: str, attributes: Collection[str] = ()) -> dict[Any, Column]:
    """The columns of a dict or an eager data frame by name.

    what:       name of the parameter, for error messages
    attributes: columns that are not ids
    """
    if isinstance(table, Mapping):
        return {name: without_scalars(column) for name, column in table.items()}
    series = None if isinstance(table, list | tuple | np.ndarray) else _series(table)
    if series is None:
        raise ValueError(f"{what} must be a dict of columns or a frame, got {type(table).__name__}")
    found = _frame_columns({name: each for name, each in series.items() if name not in attributes}, None)
    assert found.names is not None  # a frame has names
    ids: dict[Any, Any] = dict(zip(found.names, found.ids, strict=True))
    return ids | {name: _cells(each) for name, each in series.items() if name in attributes}


def values(y: Any, n: int, likelihood: Likelihood) -> NDArray[np.float64]:
    """y as n floats; EntryError if the likelihood does not allow one."""
    array = _numbers(y, n)
    good = likelihood.allows(array)
    if not good.all():
        row = int(good.argmin())
        value = float(array[row])
        reason, remedy = likelihood.refusal(value)
        raise EntryError(f"value {value:g} {reason}", row, kind="value", value=value, remedy=remedy)
    return array


def refuse(
    value: NDArray[np.float64], wrong: NDArray[np.bool_], reason: str, *, kind: str, remedy: str
) -> None:
    """Raise EntryError if any value is `wrong`; `reason` continues the sentence "value 3 ..."."""
    if wrong.any():
        rows = np.flatnonzero(wrong).tolist()
        first = float(value[rows[0]])
        raise EntryError(
            reason, rows[0], kind=kind, value=first, remedy=remedy, rows=tuple(rows), of_value=True
        )


def _numbers(y: Any, n: int) -> NDArray[np.float64]:
    array = one_column(y, n)
    if array.dtype == object:
        array = [number(value, row) for row, value in enumerate(array)]
    with np.errstate(over="ignore"):  # a long double may become inf, which no likelihood allows
        return np.ascontiguousarray(array, dtype=np.float64)


def one_column(y: Any, n: int) -> NDArray[Any]:
    """y as n bools or numbers, or as objects if it has anything else."""
    if isinstance(y, str):
        reason = f"y must be the values, not the name of their column, {y!r:.80}"
        raise EntryError(reason, remedy=f"write y=X[{y!r:.80}], and leave that column out of X")
    if y is None:
        raise EntryError("learning requires y to be passed, but the target y is None")
    if isinstance(y, np.ma.MaskedArray):
        y = y.tolist()
    try:
        array = np.asarray(y)
    except ValueError:  # ragged: one of the values is a list
        array = np.asarray(y, dtype=object)
    if array.dtype.kind == "c":
        raise EntryError(f"Complex data not supported: values are real numbers, got {array.dtype}")
    if array.dtype.kind in "mMV":
        raise EntryError(f"values must be numbers, got {array.dtype}")
    if array.dtype.kind not in "biuf":
        array = np.asarray(y, dtype=object)  # from y again: one str among numbers turns all into str
    if array.ndim == 2 and array.shape[1] == 1:
        array = _raveled(array)
    if array.ndim != 1:
        raise EntryError(f"values must be 1-D, got shape {array.shape}")
    if len(array) != n:
        raise EntryError(f"{n} entries but {len(array)} values")
    return array


def _raveled(column: NDArray[Any]) -> NDArray[Any]:
    from sklearn.exceptions import DataConversionWarning  # imported here: rarely needed, and slow

    warnings.warn(
        "A column-vector y was passed when a 1d array was expected: pass y.ravel(), or one column of a frame",
        DataConversionWarning,
        stacklevel=9,  # the caller of fit, partial_fit or learn
    )
    return column.ravel()


def number(value: Any, row: int | None) -> float:
    if value is None:  # learn_one(ids) without a value is for events
        reason, remedy = "an entry without a value: only events have none", "pass what was observed"
        raise EntryError(reason, row, kind="value", remedy=remedy)
    try:
        if isinstance(value, NO_NUMBERS):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        shown = remedy = ""
        if isinstance(value, str):
            shown = f" {value!r:.80}"
            remedy = "convert numbers with float; two labels are learned by SpiderClassifier"
        reason = f"value{shown} of type {type(value).__name__} is not a finite number"
        raise EntryError(reason, row, kind="value", value=value, remedy=remedy) from None


def _transpose(entries: Sequence[Any], width: int | None) -> list[Column]:
    if not entries:
        return [[] for _ in range(width or 0)]
    for kind in set(map(type, entries)):
        if not issubclass(kind, list | tuple | np.ndarray):  # a str has a length too but is not an entry
            raise _not_2d(f"a {type(entries).__name__} of {kind.__name__}")
    lengths = list(map(len, entries))
    width = lengths[0] if width is None else width
    if lengths.count(width) != len(lengths):
        row = next(row for row, length in enumerate(lengths) if length != width)
        raise EntryError(f"expected {width} ids, one per mode, got {lengths[row]}", row)
    if not width:
        raise _no_columns(len(entries))
    return list(zip(*entries, strict=True))


def _given_columns(X: Columns, names: Sequence[str] | None) -> Columns:
    lengths = [len(column) for column in X.ids if column is not None]
    if lengths and lengths.count(lengths[0]) != len(lengths):
        raise EntryError(f"columns differ in length: {lengths}")
    if X.names is None:
        return X
    by_name = dict(zip(X.names, X.ids, strict=True))
    wanted = _matched(by_name, names)
    return Columns([by_name[name] for name in wanted], wanted)


def _matched(found: Iterable[str], names: Sequence[str] | None) -> tuple[str, ...]:
    """The names in the learned order; EntryError if they are not the same names."""
    found = tuple(found)
    wanted = found if names is None else tuple(names)
    if missing := [name for name in wanted if name not in found]:
        raise EntryError(f"missing columns: {', '.join(missing)} (found: {', '.join(found)})")
    if extra := [name for name in found if name not in wanted]:
        raise EntryError(f"unexpected columns: {', '.join(extra)} (expected: {', '.join(wanted)})")
    return wanted


def _array_columns(X: NDArray[Any], got: str) -> Columns:
    if X.ndim != 2:
        raise _not_2d(got)
    if len(X) and not X.shape[1]:
        raise _no_columns(len(X))
    return Columns([X[:, mode] for mode in range(X.shape[1])])


def _series(X: Any) -> dict[str, Any] | None:
    """The columns of a data frame by name; None if X is not an eager data frame."""
    import narwhals as nw  # imported here: arrays and lists do not need it

    try:
        frame = nw.from_native(X, eager_only=True)
        found = list(frame.iter_columns())
    except TypeError:
        return None
    except nw.exceptions.DuplicateError:
        raise EntryError("two columns have the same name") from None
    series = {str(each.name): each for each in found}
    if len(series) < len(found):  # pandas allows columns 1 and "1"; files store names as text
        names = ", ".join(repr(each.name) for each in found)
        raise EntryError(f"two columns have the same name as text ({names:.200})", remedy="rename one")
    if len(frame) and not series:
        raise _no_columns(len(frame))
    return series


def _frame_columns(series: dict[str, Any], names: Sequence[str] | None) -> Columns:
    import narwhals as nw

    wanted = _matched(series, names)
    found = []
    for name in wanted:
        each, dtype = series[name], series[name].dtype
        if isinstance(dtype, nw.Date | nw.Datetime | nw.Duration):
            raise no_id(str(dtype)).but(column=name)
        fits_numpy = dtype.is_integer() and dtype not in (nw.Int128, nw.UInt128) and not each.null_count()
        found.append(each.to_numpy() if fits_numpy else each.to_list())
    return Columns(found, wanted)


_TIMES = ("date", "timestamp")  # how the names of their types begin


def no_id(what: str, value: Any = None, noun: str = "id") -> EntryError:
    """noun: what it should have been, an id or a value"""
    reason = f"{what} cannot be {'an' if noun == 'id' else 'a'} {noun}"
    remedy = "convert to str or int first"
    if noun == "id" and what.lower().startswith(_TIMES):  # as str, every instant would be a node of its own
        remedy = f'for a time write modes={{..., "when": Context(Calendar("time"))}}; else {remedy}'
    return EntryError(reason, kind="id", value=value, remedy=remedy)


# These messages begin with the wording of scikit-learn, which its users know and its checks match.


def _not_2d(got: str) -> EntryError:
    return EntryError(f"Reshape your data: a 2-D input with one column per mode is needed, got {got}")


def _no_columns(n: int) -> EntryError:
    reason = f"0 feature(s) (shape=({n}, 0)) while a minimum of 1 is required: one column of ids per mode"
    return EntryError(reason)


def wrong_width(expected: int, got: int) -> EntryError:
    reason = f"X has {got} features, but SPIDER is expecting {expected} features as input: one id per mode"
    return EntryError(reason)
