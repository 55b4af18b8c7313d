"""A command made of files with a function each: parse, call, print; an error is one line.

`spider` is one, the study's `spider-study` another.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

from spidertensor.cli.errors import CommandError, worded
from spidertensor.cli.output import note

if TYPE_CHECKING:
    from spidertensor.evaluation.methods import Catalogue


class Call(NamedTuple):
    """What a command can ask of its context.

    arguments: as they were typed
    catalogue: the methods and data sets that this program knows by name
    forward:   run another program with these arguments, for what has moved there, or say what is unknown
               here; None: nothing has moved
    """

    arguments: Sequence[str]
    catalogue: Callable[[], Catalogue]
    forward: Callable[[Sequence[str], str], None] | None


def empty_app(name: str) -> typer.Typer:
    return typer.Typer(
        name=name,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


class GroupedCommand(TyperCommand):
    """A command whose --help shows its options in groups, and its arguments as one writes them.

    groups: the names of options by the title they stand under; the others come last, under "Options"
    shown:  an option that the function hides, and this program shows
    """

    groups: Mapping[str, Sequence[str]] = MappingProxyType({})
    shown: str | None = None

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        for option in self.params:
            if isinstance(option, TyperOption) and option.name == self.shown:
                option.hidden = False

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for title, parameters in sections(self).items():
            with formatter.section(title):
                formatter.write_dl([_record(each, ctx) for each in parameters])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return usage(self)


def sections(command: Any) -> dict[str, list[Any]]:
    """The parameters of a command that --help shows, by the title of their group."""
    shown = {each.name: each for each in command.params if not getattr(each, "hidden", False)}
    arguments = [each for each in shown.values() if isinstance(each, TyperArgument)]
    found = {"Arguments": arguments}
    found |= {
        title: [shown[name] for name in names] for title, names in getattr(command, "groups", {}).items()
    }
    placed = [each for parameters in found.values() for each in parameters]
    found["Options"] = [each for each in shown.values() if each not in placed]
    return {title: parameters for title, parameters in found.items() if parameters}


def _record(parameter: Any, ctx: Any) -> tuple[str, str]:
    if isinstance(parameter, TyperArgument):
        return argument_name(parameter), parameter.help or ""
    return parameter.get_help_record(ctx)


def usage(command: Any) -> list[str]:
    """What is written behind the name of a command."""
    arguments = [each for each in command.params if isinstance(each, TyperArgument)]
    names = {each: argument_name(each) for each in arguments}
    return ["[OPTIONS]", *(name if each.required else f"[{name}]" for each, name in names.items())]


def argument_name(argument: TyperArgument) -> str:
    return (argument.metavar or (argument.name or "").upper()) + ("..." if argument.nargs == -1 else "")


def register(app: typer.Typer, package: str, name: str, *, shown: str | None = None) -> None:
    """A command is the function, or the Typer group, with the name of its module."""
    module = import_module(f"{package}.{name}")
    command = getattr(module, name)
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        settings = {"groups": getattr(module, "GROUPS", {}), "shown": shown}
        kind = type(f"{name.title()}Command", (GroupedCommand,), settings)
        app.command(help=_help(command), hidden=getattr(module, "HIDDEN", False), cls=kind)(command)


def _help(function: Callable[..., None]) -> str:
    """Each paragraph on one line, to be wrapped by the terminal; examples, after a \\b, stay as they are."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(each if each.startswith("\b") else " ".join(each.split()) for each in paragraphs)


def run(app: typer.Typer, name: str, call: Call, known_errors: tuple[type[Exception], ...] = ()) -> None:
    """Run the command and exit with its code. An error is one line, and code 2.

    known_errors: their text is for the user, as that of a CommandError is
    """
    _show_log()
    try:
        code = app(call.arguments, prog_name=name, standalone_mode=False, obj=call)
        sys.stdout.flush()  # here, where a full disk is still an error of this command
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:  # `spider predict ... | head`: the reader has stopped reading
        _drop_output()
        code = 141
    except Exception as error:
        message = str(error) if isinstance(error, known_errors) else _message(error)
        if message is None:
            raise
        note(f"{name}: {' '.join(message.split())}")
        code = 2
    sys.exit(code if isinstance(code, int) else 0)


class _ToStderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


def _show_log() -> None:
    """What the package logs, such as that it compiles kernels, is a line on standard error."""
    log = logging.getLogger("spidertensor")
    log.setLevel(logging.INFO)
    if not any(isinstance(each, _ToStderr) for each in log.handlers):
        log.addHandler(_ToStderr())


def _message(error: Exception) -> str | None:
    """What to tell the user; None for an internal error."""
    if hasattr(error, "format_message"):  # an error of the command line, from typer or click
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context else ""
        return error.format_message().rstrip(".") + hint  # pyright: ignore[reportAttributeAccessIssue]
    from spidertensor.evaluation.dataset import DatasetError
    from spidertensor.faults import Fault

    if isinstance(error, Fault):
        return worded(error)
    if isinstance(error, CommandError | DatasetError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        name = error.filename or ("standard output" if _is_of_output(error) else "")
        return f"{name}: {error.strerror}" if name else error.strerror
    return None


def _is_of_output(error: OSError) -> bool:
    """Whether standard output is what could not be written: such an error of another file has its name."""
    full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
    if full:
        _drop_output()
    return full


def _drop_output() -> None:
    """Else the flush at exit fails again, with a message of Python's."""
    with contextlib.suppress(OSError):  # not a file: a program that calls `main` has put something else there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
