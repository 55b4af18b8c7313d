"""The id that stands for a missing one, if missing ids are to be a node of their own (`--missing-id own`).

Sources write it, and recommendations leave it out: nobody can be shown what is not known.
"""

from __future__ import annotations

from typing import Any

MISSING_ID: tuple[Any, ...] = ()  # no source can have this id, so it is taken for no other
