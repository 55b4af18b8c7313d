"""docs/command.md, from the commands themselves: `spider docs > docs/command.md`."""

from __future__ import annotations

import re
from typing import Any


def markdown(app: Any) -> str:
    """`app` is the click group that typer makes."""
    parts = [
        "# The command `spider`",
        "Made from the commands themselves by `spider docs`. `spider COMMAND --help` shows the same.",
        _help(app),
    ]
    for name, command in app.commands.items():
        if not command.hidden:
            parts += _command(f"spider {name}", command)
    return "\n\n".join(parts) + "\n"


def _command(name: str, command: Any, level: str = "##") -> list[str]:
    if hasattr(command, "commands"):
        parts = [f"{level} {name}", _help(command)]
        for below, each in command.commands.items():
            parts += _command(f"{name} {below}", each, level + "#")
        return parts
    parameters = [
        each for each in command.params if each.name != "help" and not getattr(each, "hidden", False)
    ]
    arguments = [_metavar(each) for each in parameters if each.param_type_name == "argument"]
    parts = [f"{level} {name}", f"    {' '.join([name, *arguments, '[OPTIONS]'])}", _help(command)]
    if parameters:
        rows = [f"| {_name(each)} | {_about(each)} |" for each in parameters]
        parts.append("\n".join(["| | |", "|---|---|", *rows]))
    return parts


def _help(command: Any) -> str:
    """Paragraphs joined, and the examples (after a \\b) indented: a code block."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", (command.help or "").strip()):
        lines = [line.strip() for line in paragraph.splitlines()]
        code = lines[0] == "\b"
        paragraphs.append("\n".join(f"    {line}" for line in lines[1:]) if code else " ".join(lines))
    return "\n\n".join(paragraphs)


def _metavar(parameter: Any) -> str:
    return parameter.metavar or parameter.name.upper()


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_metavar(parameter)}`"
    metavar = (parameter.metavar or "").replace("|", "\\|")
    return ", ".join(f"`{option}`" for option in parameter.opts) + (f" {metavar}" if metavar else "")


def _about(parameter: Any) -> str:
    text = str(parameter.help or "").replace("|", "\\|")
    if parameter.required:
        return f"{text} Required." if parameter.param_type_name == "option" else text
    default = parameter.default
    if default is None or default is False or callable(default):
        return text
    return f"{text} Default: {getattr(default, 'value', default)}."
