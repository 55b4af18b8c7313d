"""All that the compiled loop needs of one model, as one record: numbers, and addresses of arrays.

Passing some thirty arrays from Python to a kernel takes longer than learning an entry. So a state's record is
made once, and the kernel gets one array of records for any number of models. It rebuilds from them the
NamedTuples that its functions work with.
"""

from __future__ import annotations

from itertools import chain
from operator import is_
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numba.core import cgutils, types
from numba.np import arrayobj, numpy_support
from numpy.typing import NDArray

from spidertensor.method import Bags
from spidertensor.spider import posterior
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Counts, Gamma, Prior, State, StreamState
from spidertensor.spider.sequential_memory import BagPlaces, Places, Settings, intrinsic, places, sizes

_NUMBERS = {int: np.int64, float: np.float64, bool: np.bool_}
_ARRAYS = {NDArray[np.int64]: np.int64, NDArray[np.float64]: np.float64, NDArray[np.float32]: np.float32}
_PARTS: dict[str, Any] = {
    "settings": Settings,
    "places": Places,
    "bags": BagPlaces,
    "noise": Gamma,
    "counts": Counts,
    "stream": StreamState,
}
_KINDS = {
    (part, field): kind for part, fields in _PARTS.items() for field, kind in get_type_hints(fields).items()
}

NO_BAGS = BagPlaces(0, 0, 0, 0, 0)
_SAMPLE = posterior.init(Network((1,), (1,)), Prior(), seed=0)
_SCALARS = {  # arrays without dimensions; all others have one
    (part, field)
    for part, values in (
        ("noise", _SAMPLE.posterior.noise),
        ("counts", _SAMPLE.counts),
        ("stream", _SAMPLE.stream),
    )
    for field, value in values._asdict().items()
    if not value.ndim
}

# First the number of modes, the address of working memory with the packed weights that is kept between calls
# (0: none), and the entry count at which they were packed. Then the fields of the parts, such as
# `stream_shift`: a number, or the address of an array followed by its length, `stream_shift_n`.
RECORD = np.dtype(
    [(name, np.int64) for name in ("modes", "scratch", "packed_at")]
    + [
        column
        for (part, field), kind in _KINDS.items()
        for column in (
            [(f"{part}_{field}", _NUMBERS[kind])]
            if kind in _NUMBERS
            else [(f"{part}_{field}", np.int64), (f"{part}_{field}_n", np.int64)]
        )
    ],
    align=True,
)


def point_to(records: NDArray[Any], bags: Bags | None, weight: NDArray[np.float64] | None = None) -> None:
    """Let the records point to attributes and weights of a call's entries, which the caller keeps alive."""
    start, table, row, of_bag = (0, 0, 0, 0) if bags is None else (each.ctypes.data for each in bags)
    at = BagPlaces(start, table, row, of_bag, 0 if weight is None else weight.ctypes.data)
    for name, address in at._asdict().items():
        records[f"bags_{name}"] = address


class Record(NamedTuple):
    record: NDArray[Any]  # (1,) of RECORD
    like: NDArray[np.floating]  # an empty array of the state's dtype
    writable: bool  # whether the state can learn in place
    scratch_size: int  # numbers in its working memory
    kept: Any  # keeps alive the arrays that the record points to


def record_of(state: State, settings: Settings, shapes: list[tuple[int, ...]]) -> Record:
    """The record of a state; ValueError if it belongs to another method. shapes: see `places`."""
    at = places(state, shapes)
    given: Any = settings, at, NO_BAGS, state.posterior.noise, state.counts, state.stream
    fields: list[Any] = [len(settings.ranks), 0, -1]
    writable, kept = True, []
    for kind, value in zip(_KINDS.values(), chain(*given), strict=True):
        if kind in _ARRAYS:
            if value.dtype != _ARRAYS[kind] or not value.flags.carray:  # read-only, or made by hand
                value, writable = np.array(value, _ARRAYS[kind]), False
            kept.append(value)
            fields += value.ctypes.data, value.size
        else:
            fields.append(value)
    parts = (*state.posterior.factors, *state.posterior.weights, *state.posterior.log_noise, *state.sites)
    writable = writable and all(array.flags.writeable for part in parts for array in part)
    like = np.empty(0, state.posterior.weights[0].mean.dtype)
    deep_start = settings.bias + settings.multilinear
    *_, size = sizes.py_func(settings.inputs.tolist(), settings.ranks.tolist(), deep_start)
    return Record(np.array([tuple(fields)], RECORD), like, writable, int(size), (kept, state))


def only_grown(before: State, after: State) -> bool:
    """Whether two states share all arrays but their numbers of nodes: new nodes got spare rows."""
    old, new = ((state.posterior, state.sites, state.stream, *state.counts[1:]) for state in (before, after))
    return all(map(is_, old, new))


def point_to_nodes(record: Any, state: State) -> None:
    """Let a record point to the numbers of nodes of a state that has `only_grown`."""
    record["counts_nodes"] = state.counts.nodes.ctypes.data


@intrinsic(prefer_literal=True)
def part(typingctx, record, name):
    """Rebuild one of the parts of a record, given by its name, as the NamedTuple it was made from."""
    fields = [field for of, field in _KINDS if of == name.literal_value]
    columns = [f"{name.literal_value}_{field}" for field in fields]
    found = []
    for field, column in zip(fields, columns, strict=True):
        kind = _KINDS[name.literal_value, field]
        if kind in _NUMBERS:
            found.append(record.typeof(column))
        else:
            dtype = numpy_support.from_dtype(np.dtype(_ARRAYS[kind]))
            found.append(types.Array(dtype, int((name.literal_value, field) not in _SCALARS), "C"))
    whole = types.NamedTuple(found, _PARTS[name.literal_value])

    def codegen(context, builder, signature, args):
        def number(column):
            kind = record.typeof(column)
            at = cgutils.get_record_member(
                builder, args[0], record.offset(column), context.get_data_type(kind)
            )
            return context.unpack_value(builder, kind, at)

        def array(column, kind):
            made = arrayobj.make_array(kind)(context, builder)
            data = builder.inttoptr(number(column), made.data.type)
            size = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
            shape, strides = ([number(f"{column}_n")], [size]) if kind.ndim else ([], [])
            arrayobj.populate_array(made, data, shape, strides, size, None)
            return made._getvalue()

        values = [
            array(column, kind) if isinstance(kind, types.Array) else number(column)
            for column, kind in zip(columns, found, strict=True)
        ]
        return context.make_tuple(builder, whole, values)

    return whole(record, name), codegen
