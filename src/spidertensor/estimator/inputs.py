"""Raw entries in, as users have them: ids in columns, values as numbers, everything checked.

X --columns--> one column of ids per mode --ids.rows--> (n, K) rows        y --values--> (n,) floats
"""

import warnings
from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[Any] | Sequence[Any]


class EntryError(ValueError):
    """Bad input: the `reason`, and the zero-based `row` within the call (None: the whole input)."""

    def __init__(self, reason: str, row: int | None = None):
        super().__init__(reason, row)
        self.reason = reason
        self.row = row

    def __str__(self) -> str:
        return self.reason if self.row is None else f"row {self.row}: {self.reason}"


def shift_and_scale(value: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and standard deviation; the latter 0 if it is but the rounding error of equal values."""
    shift, scale = float(value.mean()), float(value.std())
    return shift, scale if scale > 1e-14 * np.abs(value).max() else 0.0


def columns(
    X: Any, names: Sequence[str] | None = None, width: int | None = None
) -> tuple[list[Column], tuple[str, ...] | None]:
    """X as one column of ids per mode, and the names of its columns if it has them.

    X is a 2-D array (or something that becomes one), a list of entries, or an eager frame (pandas, polars,
    pyarrow). `names` are those of the first fit: a frame's columns are matched by name. `width` is the number
    of modes, where it is known.
    """
    width = width if names is None else len(names)
    found: list[Column]
    if isinstance(X, np.ma.MaskedArray):
        X = X.tolist()  # a masked id becomes None: missing
    if isinstance(X, list | tuple):
        return _transpose(X, width), None
    if isinstance(X, np.ndarray):
        found, seen = _array_columns(X, f"shape {X.shape}"), None
    elif (series := _series(X)) is not None:
        found, seen = _frame_columns(series, names)
    elif "sparse" in type(X).__module__:
        raise EntryError("sparse input is not supported: X holds one id per mode, not the tensor")
    elif hasattr(X, "__array__"):
        array = np.asarray(X)
        found, seen = _array_columns(array, f"a {type(X).__name__} of shape {array.shape}"), None
    else:
        raise EntryError(_not_2d(f"{type(X).__name__}, not an array, list or eager frame"))
    if width is not None and len(found) != width:
        raise EntryError(wrong_width(width, len(found)))
    return found, seen


def values(y: Any, n: int, *, binary: bool) -> NDArray[np.float64]:
    """y as n finite floats, each 0 or 1 if `binary`."""
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
        array = np.asarray(y, dtype=object)  # again from y: a str among numbers has made all of them str
    if array.ndim == 2 and array.shape[1] == 1:
        array = _raveled(array)
    if array.ndim != 1:
        raise EntryError(f"values must be 1-D, got shape {array.shape}")
    if len(array) != n:
        raise EntryError(f"{n} entries but {len(array)} values")
    if array.dtype == object:
        array = [_number(value, row) for row, value in enumerate(array)]
    with np.errstate(over="ignore"):  # a long double may become inf, found below
        array = np.ascontiguousarray(array, dtype=np.float64)
    good = np.isfinite(array)
    if binary:
        good &= (array == 0) | (array == 1)
    if not good.all():
        row = int(good.argmin())
        value = float(array[row])
        if not isfinite(value) or not binary:
            raise EntryError(f"value {value:g} is not finite", row)
        kind = "label" if value.is_integer() else "continuous value"
        raise EntryError(
            f"the {kind} {value:g} is neither 0 nor 1. Only binary classification is supported.", row
        )
    return array


def _raveled(column: NDArray[Any]) -> NDArray[Any]:
    from sklearn.exceptions import DataConversionWarning  # here: rarely needed, and slow to import

    warnings.warn(
        "A column-vector y was passed when a 1d array was expected: pass y.ravel(), or one column of a frame",
        DataConversionWarning,
        stacklevel=5,
    )
    return column.ravel()


def _number(value: Any, row: int) -> float:
    try:
        if isinstance(value, str | bytes):  # float would read it
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise EntryError(f"value of type {type(value).__name__} is not a finite number", row) from None


def _transpose(entries: Sequence[Any], width: int | None) -> list[Column]:
    if not entries:
        return [[] for _ in range(width or 0)]
    for kind in set(map(type, entries)):
        if not issubclass(kind, list | tuple | np.ndarray):  # a str has a length too, and is not an entry
            raise EntryError(_not_2d(f"a {type(entries).__name__} of {kind.__name__}"))
    lengths = list(map(len, entries))
    width = lengths[0] if width is None else width
    if lengths.count(width) != len(lengths):
        row = next(row for row, length in enumerate(lengths) if length != width)
        raise EntryError(f"expected {width} ids, one per mode, got {lengths[row]}", row)
    if not width:
        raise EntryError(_no_columns(len(entries)))
    return list(zip(*entries, strict=True))


def _array_columns(X: NDArray[Any], got: str) -> list[Column]:
    if X.ndim != 2:
        raise EntryError(_not_2d(got))
    if len(X) and not X.shape[1]:
        raise EntryError(_no_columns(len(X)))
    return [X[:, mode] for mode in range(X.shape[1])]


def _series(X: Any) -> dict[str, Any] | None:
    """The columns of a frame by name; None if X is no eager frame."""
    import narwhals as nw  # here: arrays and lists do not need it

    try:
        frame = nw.from_native(X, eager_only=True)
        series = {str(each.name): each for each in frame.iter_columns()}
    except TypeError:
        return None
    except nw.exceptions.DuplicateError:
        raise EntryError("two columns have the same name") from None
    if len(frame) and not series:
        raise EntryError(_no_columns(len(frame)))
    return series


def _frame_columns(
    series: dict[str, Any], names: Sequence[str] | None
) -> tuple[list[Column], tuple[str, ...]]:
    import narwhals as nw

    wanted = tuple(series if names is None else names)
    if missing := [name for name in wanted if name not in series]:
        raise EntryError(f"missing columns: {', '.join(missing)} (found: {', '.join(series)})")
    if extra := [name for name in series if name not in wanted]:
        raise EntryError(f"unexpected columns: {', '.join(extra)} (expected: {', '.join(wanted)})")
    found = []
    for name in wanted:
        each, dtype = series[name], series[name].dtype
        if isinstance(dtype, nw.Date | nw.Datetime | nw.Duration):
            raise EntryError(f"column {name}: {no_id(str(dtype))}")
        fits_numpy = dtype.is_integer() and dtype not in (nw.Int128, nw.UInt128) and not each.null_count()
        found.append(each.to_numpy() if fits_numpy else each.to_list())
    return found, wanted


def no_id(kind: str) -> str:
    return f"{kind} cannot be an id, convert to str or int first"


# scikit-learn's words, which its users and its checks know, come first where there are any.


def _not_2d(got: str) -> str:
    return f"Reshape your data: a 2-D input with one column per mode is needed, got {got}"


def _no_columns(n: int) -> str:
    return f"0 feature(s) (shape=({n}, 0)) while a minimum of 1 is required: one column of ids per mode"


def wrong_width(expected: int, got: int) -> str:
    return f"X has {got} features, but SPIDER is expecting {expected} features as input: one id per mode"
