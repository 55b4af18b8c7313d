"""What `update` promises."""

from __future__ import annotations

import copy

import numpy as np

from spidertensor.method import Bags, Batch, check_batch, check_index
from spidertensor.testing.case import ENTRIES, Case, part, require, require_equal


def unit_is_as_declared(case: Case) -> None:
    """Method.unit is the declared unit."""
    unit = case.build().unit
    require(unit == case.unit, f"It is {unit!r}, not {case.unit!r}.")


def empty_batch_changes_nothing(case: Case) -> None:
    """An update without entries leaves the state as it is, a fresh one too."""
    method, learned = case.learned()
    for state in (learned, method.init(0)):
        before = case.bits(state)
        state, update = method.update(state, part(case.stream(), slice(0, 0)))
        require(case.bits(state) == before, "The state has changed.")
        require(update.rejected == 0, f"{update.rejected} elements were rejected.")
        require([array.shape for array in update[:4]] == [(0,)] * 4, "The arrays of the update are not (0,).")


def update_reports_every_entry(case: Case) -> None:
    """An update reports a finite prediction for each entry, and does not write to the batch."""
    method, batch = case.build(), case.stream()
    kept = copy.deepcopy(batch)
    _, update = method.update(method.init(0), batch)
    shapes = [array.shape for array in update[:4]]
    require(shapes == [(ENTRIES,)] * 4, f"The arrays of the update have the shapes {shapes}.")
    require(np.isfinite(np.array(update[:4])).all(), "Not all of it is finite.")
    require((update.var > 0).all(), "A variance is not positive.")
    require(noise_fits(case, update.noise), "The noise must be positive, and 0 for 0/1 values.")
    require(isinstance(update.rejected, int), "Update.rejected is not an int.")
    require_equal(batch, kept, "the batch, after the update")


def noise_fits(case: Case, noise: np.ndarray) -> np.bool_:
    return (noise == 0).all() if case.likelihood.binary else (noise > 0).all()


def no_entry_is_predicted_from_its_own_value_or_a_later_one(case: Case) -> None:
    """What an update reports for an entry depends on earlier values only."""
    method, batch = case.build(), case.stream()
    _, update = method.update(method.init(0), batch)
    for first in (case.batch_size, ENTRIES - 1):  # from the start of a batch on, and the last one alone
        other = Batch(batch.index, batch.value.copy())
        other.value[first:] = 1 - other.value[first:]
        if case.likelihood.counts:
            other.value[:] = np.abs(other.value)
        if case.likelihood.ordinal:
            other.value[first:] = case.likelihood.levels[0]
        _, again = method.update(method.init(0), other)
        for a, b in zip(update[:3], again[:3], strict=True):
            np.testing.assert_array_equal(a[: first + 1], b[: first + 1])


def absurd_values_are_refused_and_counted(case: Case) -> None:
    """Entries with NaN are counted as refused, their elements as rejected; what was learned stays finite."""
    method, batch = case.build(), case.stream()
    refused = method.update(method.init(0), batch)[1].refused
    require(refused == 0, f"{refused} good entries were refused.")
    batch.value[[5, 50]] = np.nan
    with np.errstate(all="ignore"):
        state, update = method.update(method.init(0), batch)
    require(isinstance(update.refused, int), "Update.refused is not an int.")
    # a batch may be refused as a whole
    batches = [part(batch, slice(n, n + case.batch_size)) for n in range(0, ENTRIES, case.batch_size)]
    most = sum(len(each.value) for each in batches if np.isnan(each.value).any())
    require(
        2 <= update.refused <= (most if case.unit == "batch" else 2),
        f"Two values were NaN, but Update.refused is {update.refused}.",
    )
    require(update.rejected >= update.refused, "Fewer elements were rejected than entries refused.")
    prediction = np.array(method.predict(state, case.everything()))
    require(np.isfinite(prediction).all(), "A prediction afterwards is not finite.")


def malformed_batch_is_refused_and_changes_nothing(case: Case) -> None:
    """What check_batch or check_index refuses is refused with the same message, and the state stays."""
    method = case.build()
    state = method.init(0)
    if case.unit != "all":
        state, _ = method.update(state, case.stream())
    before, predicted = case.bits(state), method.predict(state, case.everything())
    index, value = case.stream(40)[:2]
    negative = index.copy()
    negative[7, -1] = -1
    for bad in (
        Batch(index[:, :-1], value),
        Batch(np.column_stack([index, index[:, 0]]), value),
        Batch(index[:, 0], value),
        Batch(index, value[:35]),
        Batch(index, np.empty(0)),
        Batch(negative, value),
    ):
        wanted = _refusal(check_batch, bad, case.n_modes)
        got = _refusal(method.update, state, bad)
        require(got == wanted, f"update should have raised ValueError({wanted!r}); it did not, or {got!r}.")
        require(case.bits(state) == before, "The state has changed.")
    everything = case.everything()
    for index in (everything[:, :-1], np.column_stack([everything, everything[:, 0]]), everything[:, 0]):
        wanted = _refusal(check_index, index, case.n_modes)
        got = _refusal(method.predict, state, index)
        require(got == wanted, f"predict should have raised ValueError({wanted!r}); it did not, or {got!r}.")
    require_equal(method.predict(state, everything), predicted, "predictions afterwards")


def attributes_are_refused(case: Case) -> None:
    """A method that learns ids only refuses attributes, and the state stays."""
    method = case.build()
    state = method.init(0)
    if case.unit != "all":
        state, _ = method.update(state, case.stream())
    before, batch = case.bits(state), case.stream(3)
    none = np.zeros(0, np.int64)
    some = Bags(np.array([0, 1, 1, 1]), np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1, np.float32))
    for bags in (some, Bags(np.zeros(4, np.int64), none, none, np.zeros(0, np.float32))):
        wanted = _refusal(check_index, batch.index, case.n_modes, bags)
        for got in (
            _refusal(method.update, state, batch._replace(bags=bags)),
            _refusal(method.predict, state, batch.index, bags),
        ):
            require(got == wanted, f"It should have raised ValueError({wanted!r}); it did not, or {got!r}.")
        require(case.bits(state) == before, "The state has changed.")


def _refusal(function, *arguments) -> str:
    """The message of the ValueError that a call raises; empty if it raises none."""
    try:
        function(*arguments)
    except ValueError as error:
        return str(error)
    return ""
