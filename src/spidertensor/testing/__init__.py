"""Check that a Method keeps what every Method promises (see spidertensor.method).

    check_method(lambda: my_method(n_modes=3), likelihood=GAUSSIAN)

learns small synthetic streams and raises an AssertionError that names the first broken promise. To see every
check as a test of its own, parametrise over `checks_of`:

    CHECKS = checks_of(Case(lambda: my_method(n_modes=3), GAUSSIAN))

    @pytest.mark.parametrize("promise", CHECKS)
    def test_contract(promise):
        CHECKS[promise]()
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from spidertensor.method import Method, Unit
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.testing import cutting, keeping, learning, predicting, spider_states
from spidertensor.testing.case import Case, Traits

__all__ = ["Case", "Traits", "check_method", "checks_of"]

_Check = Callable[[Case], None]

_ALWAYS: tuple[_Check, ...] = (
    learning.unit_is_as_declared,
    learning.empty_batch_changes_nothing,
    learning.update_reports_every_entry,
    learning.no_entry_is_predicted_from_its_own_value_or_a_later_one,
    learning.absurd_values_are_refused_and_counted,
    learning.attributes_are_refused,
    predicting.predict_is_pure,
    predicting.predict_takes_any_number_of_entries,
    predicting.variances_are_positive_and_finite,
    predicting.unseen_node_is_answered_from_the_prior,
    keeping.same_seed_gives_the_same_state,
    keeping.two_states_of_one_method_do_not_touch,
    keeping.a_restored_state_goes_on_as_if_never_stopped,
    spider_states.only_the_nodes_of_the_batch_move,
    spider_states.renaming_nodes_with_their_starts_commutes,
)
_BY_UNIT: dict[Unit, tuple[_Check, ...]] = {
    "entry": (cutting.how_calls_are_cut_does_not_matter, cutting.entry_by_entry_is_one_call),
    "batch": (cutting.cuts_between_two_batches_change_nothing,),
    "all": (cutting.a_static_method_learns_in_one_call,),
}
_STREAMING = (keeping.memory_is_constant_on_a_long_stream, keeping.a_second_batch_does_not_recompile)
_EQUAL_STARTS = (
    predicting.node_that_no_entry_has_touched_is_unseen,
    predicting.renaming_nodes_commutes,
)


def check_method(
    build: Callable[[], Method],
    *,
    likelihood: Likelihood,
    n_modes: int = 3,
    unit: Unit = "entry",
    batch_size: int = 16,
    traits: Traits = Traits(),  # noqa: B008 (immutable)
) -> None:
    """Raise an AssertionError that names the promise if the method breaks one.

    build:      a new Method with n_modes modes at each call, always with the same settings
    likelihood: decides which values the method learns
    unit:       what Method.unit has to say
    batch_size: entries of a batch, for a method that learns batches; at most 20
    traits:     what is particular to the method; leaves out the promises that it does not make
    """
    for check in checks_of(Case(build, likelihood, n_modes, unit, batch_size, traits)).values():
        check()


def checks_of(case: Case) -> dict[str, Callable[[], None]]:
    """The checks that apply to a method, by the name of the promise; each runs on its own."""
    checks = [*_ALWAYS, *_BY_UNIT[case.unit]]
    if case.unit != "all":
        checks += _STREAMING
    if case.traits.equal_starts:
        checks += _EQUAL_STARTS
    if case.traits.random:
        checks.append(keeping.another_seed_gives_another_state)
    if not case.traits.one_number:
        checks.append(learning.malformed_batch_is_refused_and_changes_nothing)
    return {check.__name__: partial(_run, check, case) for check in checks}


def _run(check: _Check, case: Case) -> None:
    try:
        check(case)
    except Exception as error:
        promise = (check.__doc__ or "").splitlines()[0]
        detail = f"{error}" if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        raise AssertionError(f"{check.__name__}: {promise} {detail.strip()}") from error
