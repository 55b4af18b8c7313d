"""The nodes of a batch, and what its entries teach them, in JAX: mathematics.md sections 7, 13 and 19.

An entry's vector x^k of mode k is the sum of its own id's factors and of w_j times those of its attributes j.
Nodes come in groups that have none in common: the own ids of all modes, then the attributes of each table. An
entry has one place for its own id in a mode, and the same number of places, or slots, as all others for its
attributes in a table; one that is left over has weight 0 and the row of no node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spidertensor.spider.network import Network
from spidertensor.spider.vectorized_networks import Normal
from spidertensor.spider.vectorized_noise import widened


class Slots(NamedTuple):
    """Attributes of a table in n entries: arrays of NumPy, or on the device."""

    row: Any  # (n, slots) in Carry.factors
    weight: Any  # (n, slots)


class Entries(NamedTuple):
    """n entries: arrays of NumPy, or on the device. A call has one axis more in front, for its batches."""

    ids: Any  # (n, K) of the own ids: rows in Carry.factors
    value: Any  # (n,)
    bags: tuple[Slots, ...]  # one per attribute table, or () without attributes
    weight: Any = None  # (n,) how often each counts; None: once


class Group(NamedTuple):
    """Nodes that entries can share: own ids, where each of the K modes is a row of n places, or the
    attributes of one table, a single row of n * slots places."""

    modes: slice
    slots: int  # places of an entry
    row: jax.Array  # (rows, places) in Carry.factors
    weight: jax.Array | None  # (rows, places, 1); None: all 1
    prior_var: Any  # (length,)
    shared: jax.Array  # (rows, places, places) 1 where two places have the same node, else 0

    def weighted(self, x: jax.Array) -> jax.Array:
        return x if self.weight is None else x * self.weight

    def of_places(self, x: jax.Array) -> jax.Array:
        """(places, ...) what belongs to an entry, for each of its places."""
        return x if self.slots == 1 else jnp.repeat(x, self.slots, axis=0)

    def gradient(self, g_x: jax.Array) -> jax.Array:
        """(rows, places, length) df of a place's entry with respect to its node; g_x: (n, K, length)."""
        g = g_x[:, self.modes].swapaxes(0, 1)
        return self.weighted(g if self.slots == 1 else jnp.repeat(g, self.slots, axis=1))

    def times(self, entries: jax.Array) -> jax.Array:
        """(rows, places) in how many of these entries the node of a place is. entries: (n,) true or false"""
        return self.shared @ self.of_places(entries.astype(self.shared.dtype))


def has_id(network: Network) -> np.ndarray | None:
    """(K,) whether the entries of a mode have ids; None: in all modes."""
    return ~np.isin(np.arange(network.n_modes), network.without_id) if network.without_id else None


def groups_of(network: Network, prior_var: Any, entries: Entries) -> list[Group]:
    ids, value, bags, _ = entries
    dtype, there = value.dtype, has_id(network)
    weight = None if there is None else jnp.asarray(there[:, None, None], dtype)
    groups = [Group(slice(None), 1, ids.T, weight, prior_var, _same(ids.T, dtype))]
    for table, (row, w) in zip(network.tables, bags, strict=False):
        row, weight = row.reshape(1, -1), w.reshape(1, -1, 1)
        modes, slots = slice(table.mode, table.mode + 1), w.shape[1]
        groups.append(Group(modes, slots, row, weight, table.scale * prior_var, _same(row, dtype)))
    return groups


def _same(row: jax.Array, dtype: Any) -> jax.Array:
    return (row[:, :, None] == row[:, None, :]).astype(dtype)


def gathered(factors: Normal, groups: Sequence[Group]) -> list[Normal]:
    """(rows, places, length) factors of the nodes, one Normal for each group."""
    return [Normal(*(part[group.row.T].swapaxes(0, 1) for part in factors)) for group in groups]


def summed(groups: Sequence[Group], parts: Sequence[jax.Array]) -> jax.Array:
    """(n, K, length) the sum over the places of each entry. parts: (rows, places, length) of each group"""
    own, *others = parts
    total = own.swapaxes(0, 1)
    for group, part in zip(groups[1:], others, strict=True):
        each = part.reshape(-1, group.slots, part.shape[-1])
        total = total.at[:, group.modes.start].add(jnp.sum(each, axis=1))
    return total


def before(groups: Sequence[Group], nodes: Sequence[Normal], log_widening: Any, there: Any) -> list[Normal]:
    """Factors before the batch, widened once for each entry of the node that is `there` (section 13)."""
    found = []
    for group, node in zip(groups, nodes, strict=True):
        times = group.times(there)[..., None]
        found.append(node._replace(var=widened(node.var, group.prior_var, log_widening, times)))
    return found


def covariance(group: Group, A: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(n, n) what the group adds to the covariance of f, and its diagonal. A: gradients times sqrt(var)"""
    cov, beta = jnp.sum(group.shared * (A @ A.mT), axis=0), jnp.sum(A * A, axis=(0, 2))
    if group.slots > 1:
        n = len(beta) // group.slots
        cov = jnp.sum(cov.reshape(n, group.slots, n, group.slots), axis=(1, 3))
        beta = jnp.sum(beta.reshape(n, group.slots), axis=1)
    return cov, beta


def learned(group: Group, old: Normal, A: jax.Array, S_res: Any, S_inv: Any) -> tuple[Normal, jax.Array]:
    """Nodes after the batch: sums run over the places that share a node, and all of these get its row. Also
    returns how many elements could not move."""
    S_res = group.of_places(S_res)
    S_inv = group.of_places(group.of_places(S_inv).T)
    sums = group.shared @ jnp.concatenate(
        [A * S_res[:, None], A * ((group.shared * S_inv) @ A), jnp.ones_like(A[..., :1])], axis=-1
    )
    step, shrink, times = jnp.split(sums, [A.shape[-1], 2 * A.shape[-1]], axis=-1)
    new, bad = narrowed(old, jnp.sqrt(old.var) * step, shrink)
    return new, jnp.round(jnp.sum(bad / times)).astype(jnp.int32)  # a node counts once


def put(table: Any, new: Any, row: jax.Array, where: jax.Array) -> Any:
    """Put new rows into the tables of nodes; rows of refused entries stay."""
    return jax.tree.map(lambda part, now: part.at[row].set(jnp.where(where, now, part[row])), table, new)


# --- elements ---------------------------------------------------------------------------------------


def moved(old: Normal, g: Any, bend: Any, da: Any, c: Any) -> tuple[Normal, jax.Array]:
    """Elements after one entry, unchanged where var would not stay positive; and where that is.

    dmu² - 2 dv = c g² + bend (2 da g + bend). This form avoids da² - 2 db, which cancels for an outlier.
    """
    dmu = da * g + bend
    var = old.var - old.var * old.var * (c * g * g + bend * (dmu + da * g))
    bad = ~(var > 0)  # true for NaN
    return Normal(jnp.where(bad, old.mean, old.mean + old.var * dmu), jnp.where(bad, old.var, var)), bad


def narrowed(old: Normal, step: Any, shrink: Any) -> tuple[Normal, jax.Array]:
    """mean + step and var (1 - shrink), unchanged where var would not stay positive; and where that is."""
    bad = ~(shrink < 1)  # true for NaN
    mean = jnp.where(bad, old.mean, old.mean + step)
    return Normal(mean, jnp.where(bad, old.var, old.var * (1 - shrink))), bad
