"""Docstrings list parameters as aligned lines, `name:  what it is`; on a page they become bullet points."""

from __future__ import annotations

import inspect
import re
from typing import Any

import griffe

ITEM = re.compile(r"([\w*]+(?:, [\w*]+)*):? {2,}(\S.*)|([\w*]+(?:, [\w*]+)*): (\S.*)")


class Lists(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = bullets(inspect.cleandoc(obj.docstring.value))


def bullets(text: str) -> str:
    return "\n\n".join(_paragraph(each) for each in text.split("\n\n"))


def _paragraph(text: str) -> str:
    """As it is, unless every line is an item or, indented, the rest of one."""
    lines = text.splitlines()
    found = [ITEM.fullmatch(line) for line in lines]
    if not lines or not found[0]:
        return text
    if not all(match or line.startswith("  ") for match, line in zip(found, lines, strict=True)):
        return text
    return "\n".join(
        "- `{}`: {}".format(*(group for group in match.groups() if group)) if match else f"  {line.strip()}"
        for match, line in zip(found, lines, strict=True)
    )
