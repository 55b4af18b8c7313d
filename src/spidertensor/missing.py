"""The id that stands for all missing ids of a mode, with `--missing-id own`.

Sources produce it; recommendations leave it out, because it names nothing to show.
"""

from __future__ import annotations

from typing import Any

MISSING_ID: tuple[Any, ...] = ()  # cannot occur as an id in a source
