"""All that the compiled loop needs of one model, as one record: numbers, and addresses of arrays.

Passing some thirty arrays from Python to a kernel takes longer than learning an entry. So a state's record is
made once, and the kernel gets one array of records for any number of models. It rebuilds from them the
NamedTuples that its functions work with.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray

from spidertensor.spider.compiled import PART, kernel
from spidertensor.spider.posterior import Counts, Gamma, State, Stream
from spidertensor.spider.sequential_memory import Places, Settings, carray, elements, places, sizes

_NUMBERS = {int: np.int64, float: np.float64, bool: np.bool_}
_ARRAYS = {NDArray[np.int64]: np.int64, NDArray[np.float64]: np.float64, NDArray[np.float32]: np.float32}
_WHOLE, _REAL, _SINGLE = (np.empty(1, kind) for kind in _ARRAYS.values())  # `elements` wants their dtypes
_PARTS: dict[str, Any] = {
    "settings": Settings,
    "places": Places,
    "noise": Gamma,
    "counts": Counts,
    "stream": Stream,
}
_KINDS = {
    (part, field): kind for part, fields in _PARTS.items() for field, kind in get_type_hints(fields).items()
}

# First the address of working memory with the packed weights that is kept between calls (0: none), the entry
# count at which they were packed, and the lengths of arrays that depend on the network. Then the fields of
# the parts, such as `stream_shift`: a number, or the address of an array.
RECORD = np.dtype(
    [(name, np.int64) for name in ("scratch", "packed_at", "modes", "layers", "longest")]
    + [(f"{part}_{field}", _NUMBERS.get(kind, np.int64)) for (part, field), kind in _KINDS.items()],
    align=True,
)


class Record(NamedTuple):
    record: NDArray[Any]  # (1,) of RECORD
    like: NDArray[np.floating]  # an empty array of the state's dtype
    writable: bool  # whether the state can learn in place
    scratch_size: int  # numbers in its working memory
    kept: Any  # keeps alive the arrays that the record points to


def record_of(state: State, settings: Settings, shapes: list[tuple[int, ...]]) -> Record:
    """The record of a state; ValueError if it belongs to another method. shapes: see `places`."""
    at = places(state, shapes)
    given: Any = settings, at, state.posterior.noise, state.counts, state.stream
    fields: list[Any] = [0, -1, len(settings.ranks), len(settings.inputs), len(settings.prior_var)]
    writable, kept = True, []
    for kind, value in zip(_KINDS.values(), chain(*given), strict=True):
        if kind in _ARRAYS:
            if value.dtype != _ARRAYS[kind] or not value.flags.carray:  # read-only, or made by hand
                value, writable = np.array(value, _ARRAYS[kind]), False
            kept.append(value)
            value = value.ctypes.data
        fields.append(value)
    parts = (*state.posterior.factors, *state.posterior.weights, *state.posterior.log_noise, *state.sites)
    writable = writable and all(array.flags.writeable for part in parts for array in part)
    like = np.empty(0, state.posterior.weights[0].mean.dtype)
    deep_start = settings.bias + settings.multilinear
    *_, size = sizes.py_func(settings.inputs.tolist(), settings.ranks.tolist(), deep_start)
    return Record(np.array([tuple(fields)], RECORD), like, writable, int(size), (kept, state))


@kernel(**PART)
def _array(address, n, like):
    return carray(elements(address, like), (n,))


@kernel(**PART)
def _number(address, like):
    """A zero-dimensional array."""
    return carray(elements(address, like), ())


@kernel(**PART)
def settings_of(r):
    return Settings(
        likelihood=r.settings_likelihood,
        activation=r.settings_activation,
        curvature=r.settings_curvature,
        slab_var=r.settings_slab_var,
        rho0=r.settings_rho0,
        forgetting=r.settings_forgetting,
        paper_noise=r.settings_paper_noise,
        refine_every=r.settings_refine_every,
        normal=r.settings_normal,
        has_level=r.settings_has_level,
        clip=r.settings_clip,
        follows=r.settings_follows,
        node_noise=r.settings_node_noise,
        widening=r.settings_widening,
        log_noise_prior=r.settings_log_noise_prior,
        log_noise_widening=r.settings_log_noise_widening,
        bias=r.settings_bias,
        multilinear=r.settings_multilinear,
        product=r.settings_product,
        ranks=_array(r.settings_ranks, r.modes, _WHOLE),
        inputs=_array(r.settings_inputs, r.layers, _WHOLE),
        n_elements=r.settings_n_elements,
        prior_var=_array(r.settings_prior_var, r.longest, _SINGLE),
    )


@kernel(**PART)
def places_of(r):
    return Places(
        factor_mean=_array(r.places_factor_mean, r.modes, _WHOLE),
        factor_var=_array(r.places_factor_var, r.modes, _WHOLE),
        log_noise_mean=_array(r.places_log_noise_mean, r.modes, _WHOLE),  # invalid without node_noise
        log_noise_var=_array(r.places_log_noise_var, r.modes, _WHOLE),
        weight_mean=_array(r.places_weight_mean, r.layers, _WHOLE),
        weight_var=_array(r.places_weight_var, r.layers, _WHOLE),
        site_precision=_array(r.places_site_precision, r.layers, _WHOLE),
        site_precision_mean=_array(r.places_site_precision_mean, r.layers, _WHOLE),
        site_log_odds=_array(r.places_site_log_odds, r.layers, _WHOLE),
    )


@kernel(**PART)
def noise_of(r):
    return Gamma(shape=_number(r.noise_shape, _REAL), rate=_number(r.noise_rate, _REAL))


@kernel(**PART)
def counts_of(r):
    return Counts(
        nodes=_array(r.counts_nodes, r.modes, _WHOLE),
        entries=_number(r.counts_entries, _WHOLE),
        rejected=_number(r.counts_rejected, _WHOLE),
        refused=_number(r.counts_refused, _WHOLE),
        clipped=_number(r.counts_clipped, _WHOLE),
        log_evidence=_number(r.counts_log_evidence, _REAL),
    )


@kernel(**PART)
def stream_of(r):
    return Stream(
        shift=_number(r.stream_shift, _REAL),
        scale=_number(r.stream_scale, _REAL),
        entries=_number(r.stream_entries, _REAL),
        mean=_number(r.stream_mean, _REAL),
        var=_number(r.stream_var, _REAL),
        log_noise=_array(r.stream_log_noise, r.modes, _REAL),
        window=_array(r.stream_window, 7, _REAL),
        watching=_number(r.stream_watching, _WHOLE),
        followed=_array(r.stream_followed, 3, _WHOLE),
    )
