"""Let several workers learn the members of an estimator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from spidertensor.cluster.merge import copied
from spidertensor.cluster.parts import Recipe, engine, recipes_of
from spidertensor.cluster.rounds import PART, Rounds, split
from spidertensor.estimator.base import Spider
from spidertensor.estimator.fitted import Fitted
from spidertensor.estimator.parameters import is_whole, members_of
from spidertensor.method import Bags, Batch, Method, Prediction, Update, check_batch, check_index
from spidertensor.spider.committee import committee
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Gaussian, State

PIECE = 2**17  # entries that are learned at least while those before are mixed
ENDLESS = 2**40  # rows: more than there will ever be nodes

S = TypeVar("S", bound=Spider)


def fit(
    model: S,
    X: Any,
    y: Any,
    *,
    workers: int,
    address: str | None = None,
    part: int = PART,
) -> S:
    """`model.fit(X, y)` by several workers (docs/cluster.md).

    workers: number of workers. Up to one per member of the committee the result is the same as with one;
             more share the stream of each member, which changes the result a little
    address: of a Ray cluster that has a process for each member (pip install 'spidertensor[ray]'): host:port,
             "auto", or "local" for one on this machine. None: workers are threads of this process
    part:    entries that a worker learns before its results are merged with the others'
    """
    with on_workers(model, workers=workers, address=address, part=part):
        return model.fit(X, y)


@contextmanager
def on_workers(
    model: Spider,
    *,
    workers: int,
    address: str | None = None,
    part: int = PART,
) -> Iterator[InThreads | OnCluster]:
    """Inside, several workers learn for `model`: partial_fit, learn, predict and save work as usual.

    At the end all of the model is back in this process. Each call of `learn` ends a round: few long calls are
    fast, and calls that end where a round ends anyway (see `rounds` of the yielded object) change nothing.
    """
    for name, value in (("workers", workers), ("part", part)):
        if not (is_whole(value) and value >= 1):
            raise ValueError(f"{name} must be a whole number, at least 1, got {value!r}")
    how = rounds_for(model, workers, part)
    _check(model, workers, address)
    with ExitStack() as stack:
        if address is None:
            placed = InThreads(how, workers)
        else:
            placed = OnCluster(stack.enter_context(_ray(address, workers)), how)
        model._placed = placed
        try:
            if model._learned is not None:
                model._learned = placed.start(model._learned)
            yield placed
            if model._learned is not None:
                model._learned = placed.whole(model._learned)
        except BaseException:
            model._learned = placed.after_error(model._learned)
            raise
        finally:
            model._placed = None


@contextmanager
def _ray(address: str, workers: int) -> Iterator[Any]:
    """Run Ray inside the block; yields the module ray_cluster."""
    try:
        from spidertensor.cluster import ray_cluster
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        needed = "a cluster needs Ray: pip install 'spidertensor[ray]'"
        raise ModuleNotFoundError(needed, name="ray") from None
    with ray_cluster.started(None if address == "local" else address, workers):
        yield ray_cluster


def rounds_for(model: Spider, workers: int, part: int = PART) -> Rounds:
    """How the stream of a member is cut for this many workers."""
    params = model.get_params(deep=False) if model._learned is None else model._learned.params
    return Rounds(max(workers // len(members_of(params)), 1), part)


def _check(model: Spider, workers: int, address: str | None) -> None:
    params = model.get_params(deep=False)
    if params["engine"] != "sequential":
        raise ValueError(f"workers learn with the sequential engine, not with {params['engine']!r}")
    if params["max_nodes"] is not None:
        raise ValueError("max_nodes does not work with workers: leave out one of them")
    if params.get("negatives") is not None:
        raise ValueError("models of events (negatives) do not work with workers: leave out the workers")
    most = len(members_of(params))
    schema = model._schema
    if schema is not None and any(mode.columns for mode in schema.modes):
        if address is not None:
            raise ValueError(
                "attributes do not work on a cluster: leave it out, so that workers are threads, or name "
                "only columns of ids in modes"
            )
        if workers > most:
            raise ValueError(f"models with attributes can use one worker per member: at most {most}")
    if address is not None and workers > most:
        raise ValueError(
            f"a cluster has one worker per member: at most {most}. More can share a member as threads: leave "
            "the cluster out"
        )
    if address is not None and model.likelihood_.ordinal:
        raise ValueError("ordinal models do not work on a cluster: leave it out, so that workers are threads")
    if workers > most and (model.likelihood_.level_var or model.likelihood_.ordinal):
        raise ValueError(f"{model.likelihood_.name} models can use one worker per member: at most {most}")


class InThreads:
    """Learns the members of an estimator in threads of this process.

    rounds: how the stream of a member is cut; not at all with one worker per member
    """

    def __init__(self, rounds: Rounds, workers: int) -> None:
        self.rounds, self.workers = rounds, workers
        self._model: Any = None
        self._torn = False  # an error stopped a call between two rounds

    def start(self, fitted: Fitted) -> Fitted:
        self._model = fitted.model
        members = [
            self._watched(split(recipe, self.rounds, self.rounds.workers), recipe.network)
            for recipe in recipes_of(fitted.params, fitted.model)
        ]
        threads = min(self.workers, len(members))
        method = committee(
            members,
            fitted.model.likelihood,
            clip=fitted.params.get("clip"),
            threads=threads,
            pieces=self._pieces,
        )
        return fitted._replace(model=fitted.model._replace(method=method))

    def _watched(self, method: Method, network: Network) -> Method:
        def update(state: State, batch: Batch) -> tuple[State, Update]:
            self._check_whole()
            # raises before anything has changed
            check_batch(batch, network.n_modes, without_id=network.without_id, n_tables=len(network.tables))
            try:
                return method.update(state, batch)
            except BaseException:
                self._torn = True
                raise

        return replace(method, update=update)

    def _pieces(self, before: int, batch: Batch) -> list[int]:
        """Where rounds end; without rounds, a batch can be cut anywhere."""
        ends, n = [0], len(batch.value)
        while ends[-1] < n:
            end = ends[-1] + PIECE
            if self.rounds.workers > 1:
                end = ends[-1]
                while end < min(ends[-1] + PIECE, n):
                    end += self.rounds.length(before + end)
            ends.append(min(end, n))
        return ends[1:]

    def _check_whole(self) -> None:
        if self._torn:
            raise RuntimeError("an error stopped a call between two rounds: load the model's last file")

    def whole(self, fitted: Fitted) -> Fitted:
        self._check_whole()
        return fitted._replace(model=self._model)

    def after_error(self, fitted: Fitted | None) -> Fitted | None:
        """The model as learned so far; None if an error left the rows of an unfinished call."""
        return None if fitted is None or self._torn else self.whole(fitted)


class OnCluster:
    """Learns each member of an estimator in a process of a Ray cluster. rounds: see InThreads."""

    def __init__(self, ray_cluster: Any, rounds: Rounds) -> None:
        self.ray, self.rounds = ray_cluster, rounds
        self._members: list[_Whole] = []
        self._model: Any = None

    def start(self, fitted: Fitted) -> Fitted:
        """Move the members to other processes; without their rows they stay in this one, too."""
        recipes, states = recipes_of(fitted.params, fitted.model), fitted.state.members
        self._members = [
            _Whole(self.ray.MemberActor(recipe, state), recipe)
            for recipe, state in zip(recipes, states, strict=True)
        ]
        self._model, likelihood = fitted.model, fitted.model.likelihood
        methods = [member.method() for member in self._members]
        # one thread per member: they only wait
        method = committee(methods, likelihood, clip=fitted.params.get("clip"), threads=len(methods))
        state = fitted.state._replace(members=tuple(map(elsewhere, states)))
        return fitted._replace(model=fitted.model._replace(method=method), state=state)

    def whole(self, fitted: Fitted) -> Fitted:
        """The model with a copy of all its state in this process; the others keep theirs."""
        members = tuple(
            member.whole(state) for member, state in zip(self._members, fitted.state.members, strict=True)
        )
        return fitted._replace(model=self._model, state=fitted.state._replace(members=members))

    def after_error(self, fitted: Fitted | None) -> None:
        """Always None: the rows are lost with the processes."""


class _Whole:
    def __init__(self, actor: Any, recipe: Recipe) -> None:
        self.actor, self.recipe = actor, recipe

    def method(self) -> Method:
        def update(state: State, batch: Batch) -> tuple[State, Update]:
            check_batch(batch, self.recipe.network.n_modes)
            shared, update = self.actor.call("update", int(state.counts.entries), batch)
            return elsewhere(copied(shared)), update

        def predict(state: State, index: NDArray[np.integer], bags: Bags | None = None) -> Prediction:
            check_index(index, self.recipe.network.n_modes, bags)
            return self.actor.call("predict", index)

        return Method(engine(self.recipe).init, update, predict)

    def whole(self, state: State) -> State:
        return copied(self.actor.call("state", int(state.counts.entries)))


def elsewhere(state: State) -> State:
    """The state with placeholders for its rows, which are in other processes: room for any number of nodes,
    no memory, and NaN if one is read by mistake."""

    def endless(part: NDArray[np.floating]) -> NDArray[np.floating]:
        return np.broadcast_to(np.array(np.nan, part.dtype), (ENDLESS, *part.shape[1:]))

    factors, log_noise = (
        tuple(Gaussian(*map(endless, each)) for each in modes)
        for modes in (state.posterior.factors, state.posterior.log_noise)
    )
    return state._replace(posterior=state.posterior._replace(factors=factors, log_noise=log_noise))
