"""Bags: what an entry has in a mode beside its own id, as weighted nodes of attribute tables."""

from __future__ import annotations

from typing import NamedTuple


class Table(NamedTuple):
    """A table of attribute nodes. mode: the mode they add to; scale: their prior variance as a share of that
    of an own id"""

    mode: int
    scale: float
