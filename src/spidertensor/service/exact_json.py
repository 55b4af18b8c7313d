"""Parse JSON strictly, with integers of any size, and write it whatever texts there are.

orjson is fast and strict, but turns integers beyond 64 bits into floats, which makes different ids equal.
Python's parser keeps them, but accepts NaN and halves of surrogate pairs. Such
halves stand for the bytes of a file name that are not UTF-8; nothing with them can be sent.
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


def encoded(content: Any) -> bytes:
    """JSON of the content, with a ? for each character that cannot be sent."""
    try:
        return orjson.dumps(content)
    except TypeError:
        return orjson.dumps(sendable(content))


def sendable(content: Any) -> Any:
    """A copy with a ? for each character that cannot be sent."""
    if isinstance(content, str):
        return content.encode(errors="replace").decode()
    if isinstance(content, dict):
        return {sendable(name): sendable(each) for name, each in content.items()}
    if isinstance(content, list | tuple):
        return [sendable(each) for each in content]
    return content
