"""Take the prediction for an entry apart: mathematics.md section 25.

    f = level + sum of biases + sum over pairs of modes + network          for each member

A part of the committee is the weighted mean of its members' parts, so its parts add up to its f. The variance
of a part is that of the mixture of its members' parts, each with its own sum of g^2 v.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.fitted import Fitted
from spidertensor.estimator.parameters import Member
from spidertensor.method import Bags
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import State, factor_prior_var

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Key = tuple[str, str]  # kind and name of a part
Moments = NDArray[np.float64]  # mean and variance

LEVEL, NETWORK = ("level", "level"), ("network", "network")


class Part(NamedTuple):
    """What one thing adds to f.

    kind:   "level", "bias" (of a node or an attribute), "pair" (of modes) or "network"
    effect: in user units; for labels and counts in units of f
    std:    how uncertain the model is of the effect
    entries: of a node with an id, in how many it was learned; None if that is not known
    """

    kind: str
    name: str
    effect: float
    std: float
    entries: int | None = None


class Explanation(NamedTuple):
    """The prediction for one entry, taken apart.

    parts:       their effects add up to `latent`
    latent, std: mean and standard deviation of f, without the noise of an observation
    mean:        what `predict` says: for values `latent` itself, within the `bounds`; for labels the
                 probability of the positive one, for counts the rate, each a mean over how uncertain f is
    """

    parts: list[Part]
    latent: float
    std: float
    mean: float

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw the parts, each from where the one before ends, with its std; needs matplotlib.

        axes: to draw into; by default those of a new figure, `axes.figure`
        """
        if axes is None:
            from matplotlib.figure import Figure

            axes = Figure(figsize=(6, 0.8 + 0.4 * len(self.parts)), layout="constrained").subplots()
        effect = np.array([part.effect for part in self.parts])
        std = np.array([part.std for part in self.parts])
        end = np.cumsum(effect)
        colours = ["0.6", *np.where(effect[1:] < 0, "tab:orange", "tab:blue")]
        axes.barh(
            np.arange(len(effect)),
            effect,
            left=end - effect,
            xerr=std,
            color=colours,
            ecolor="0.3",
            height=0.6,
        )
        low, high = (end - std).min(), (end + std).max()  # the level begins at 0, which may be far away
        room = 0.1 * (high - low) + 1e-9
        axes.set_xlim(low - room, high + room)
        axes.axvline(end[-1], color="0.3", linewidth=0.8, linestyle=":")
        axes.set_yticks(np.arange(len(effect)), [part.name.replace("$", r"\$") for part in self.parts])
        axes.invert_yaxis()
        axes.set_xlabel(f"adds up to {self.latent:.4g} ± {self.std:.2g}")
        axes.spines[["top", "right"]].set_visible(False)
        return axes


class Named(NamedTuple):
    """A node of the entry under the name of its bias. row: in its table; -1 if it was never seen"""

    table: int
    row: int
    weight: float
    name: str


def explanation(
    fitted: Fitted, index: NDArray[np.int64], bags: Bags | None, modes: list[str], ids: list[str]
) -> Explanation:
    """index (1, K), bags: of one entry; modes, ids: how to call its modes and its nodes"""
    nodes, (shift, scale), wholes, parts_of = _nodes(fitted, index[0], bags, ids), fitted.scaling, [], []
    has_level = fitted.model.likelihood.level_var > 0  # counts learn one beside the network
    for member, state in zip(fitted.model.members, fitted.state.members, strict=True):
        whole = np.array([each.item() for each in member.method.predict(state, index, bags)[:2]])
        level = (float(state.stream.mean), float(state.stream.var)) if has_level else (0.0, 0.0)
        wholes.append(whole)
        parts_of.append(_parts(member, state, nodes, modes, whole, level))
    parts, entries = [], _entries(fitted, nodes)
    for kind, name in dict.fromkeys(key for each in parts_of for key in each):
        of_members = [each.get((kind, name), np.zeros(2)) for each in parts_of]
        effect, std = _mixed(fitted.state.weights, of_members)
        effect = scale * effect + (shift if (kind, name) == LEVEL else 0.0)
        parts.append(Part(kind, name, effect, scale * std, entries.get(name) if kind == "bias" else None))
    latent, std = _mixed(fitted.state.weights, wholes)
    predicted = fitted.scaling.user_units(*fitted.model.method.predict(fitted.state, index, bags))
    expected = fitted.shown.expected(*predicted).item()
    return Explanation(parts, shift + scale * latent, scale * std, expected)


def _mixed(weights: NDArray[np.float64], moments: list[Moments]) -> tuple[float, float]:
    """Mean and standard deviation of a mixture, from the mean and variance of each of its members."""
    mean, var = np.array(moments).T
    mixture = float(weights @ mean)
    return mixture, float(weights @ (var + (mean - mixture) ** 2)) ** 0.5


def _nodes(fitted: Fitted, index: NDArray[np.int64], bags: Bags | None, ids: list[str]) -> list[Named]:
    columns, n_modes = fitted.columns, len(index)
    with_id = [columns is None or columns.schema.modes[mode].has_id for mode in range(n_modes)]
    own = [Named(mode, int(row), 1.0, ids[mode]) for mode, row in enumerate(index) if with_id[mode]]
    if bags is None or columns is None:
        return own
    elements = zip(bags.table.tolist(), bags.row.tolist(), bags.weight.tolist(), strict=True)
    return own + [
        Named(n_modes + table, row, weight, columns.columns[table].spec.name)
        for table, row, weight in elements
    ]


def _entries(fitted: Fitted, nodes: list[Named]) -> dict[str, int | None]:
    """In how many entries the nodes with ids were learned; None if that is not known."""
    of_ids = (node for node in nodes if node.table < len(fitted.nodes))
    return {node.name: fitted.tally.entries_of(node.table, node.row) for node in of_ids}


def _parts(
    member: Member,
    state: State,
    nodes: list[Named],
    modes: list[str],
    whole: Moments,
    level: tuple[float, float],
) -> dict[Key, Moments]:
    """Mean and variance of the parts of one member, in the model's units.

    whole, level: mean and variance of f, and of the level that counts have
    """
    network, unit = member.network, float(state.stream.scale)
    units = np.array([unit, unit**2])
    found: dict[Key, Any] = defaultdict(lambda: np.zeros(2))
    found[LEVEL] += (float(state.stream.shift) + unit * level[0], unit**2 * level[1])
    mean, var = np.zeros((2, network.n_modes, network.multilinear))
    for node in nodes:
        u, v = _factor(network, member, state, node)
        if network.bias:
            found["bias", node.name] += units * (node.weight * u[0], node.weight**2 * v[0])
        mode, pairs = network.table_modes[node.table], slice(int(network.bias), network.deep_start)
        mean[mode] += node.weight * u[pairs]
        var[mode] += node.weight**2 * v[pairs]
    biases = sum((part for (kind, _), part in found.items() if kind == "bias"), np.zeros(2))
    found |= {("pair", name): units * part for name, part in _pairs(network, mean, var, modes).items()}
    pairs = units * _all_pairs(network, mean, var)
    rest = whole - biases - pairs - found[LEVEL]
    found[NETWORK if network.has_deep else LEVEL] += (rest[0], max(rest[1], 0.0))
    return dict(found)


def _factor(network: Network, member: Member, state: State, node: Named) -> tuple[Moments, Moments]:
    """Mean and variance of bias and pairs of a node; those of the prior if it was never seen."""
    size, factor = network.deep_start, state.posterior.factors[node.table]
    if 0 <= node.row < state.counts.nodes[node.table]:
        return factor.mean[node.row, :size].astype(float), factor.var[node.row, :size].astype(float)
    return np.zeros(size), factor_prior_var(network, member.prior, node.table)[:size].astype(float)


def _pairs(network: Network, mean: Moments, var: Moments, modes: list[str]) -> dict[str, Moments]:
    """Mean and variance of what each pair of modes adds; mean, var (K, length): of the modes' parts"""
    if not network.multilinear:
        return {}
    if network.product:
        return {" x ".join(modes): _all_pairs(network, mean, var)}
    return {
        f"{modes[k]} x {modes[j]}": np.array(
            [mean[k] @ mean[j], mean[k] ** 2 @ var[j] + mean[j] ** 2 @ var[k]]
        )
        for k, j in combinations(range(len(mean)), 2)
    }


def _all_pairs(network: Network, mean: Moments, var: Moments) -> Moments:
    """Mean and variance of the sum over all pairs of modes."""
    if network.product:
        others = np.array([np.delete(mean, k, axis=0).prod(axis=0) for k in range(len(mean))])
        return np.array([mean.prod(axis=0).sum(), (others**2 * var).sum()])
    others = mean.sum(axis=0) - mean
    return np.array([(others * mean).sum() / 2, (others**2 * var).sum()])
