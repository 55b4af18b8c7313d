"""Parse JSON strictly, with integers of any size.

orjson is fast and strict, but turns integers beyond 64 bits into floats, which makes different ids equal.
Python's parser keeps them, but accepts NaN and halves of surrogate pairs.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

_WIDE = re.compile(rb"[0-9]{19}")  # 2**63 has 19 digits


def exact(text: bytes) -> Any:
    """ValueError or RecursionError for what is not JSON."""
    found = orjson.loads(text)
    return json.loads(text) if _WIDE.search(text) else found


def lossy(column: list[Any]) -> bool:
    """Whether orjson may have turned integers beyond 64 bits into floats."""
    return any(isinstance(raw, float) and abs(raw) >= 2**63 for raw in column)
