"""Framework for commands with one file per subcommand, and errors on one line.

Used by `spider` and by the study's `spider-study`.
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
    """The context object of a command.

    arguments: the command line as typed
    catalogue: the methods and data sets that this program knows by name
    forward:   run another program with these arguments, for what moved there, or say what is unknown here;
               None if nothing moved
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
    """A command whose --help groups its options, and shows arguments as they are typed.

    groups: option names by title; the remaining options come last, under "Options"
    shown:  a hidden option of the function that this program shows
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
    """The visible parameters of a command by group title."""
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
    """The usage line after the command name."""
    arguments = [each for each in command.params if isinstance(each, TyperArgument)]
    names = {each: argument_name(each) for each in arguments}
    return ["[OPTIONS]", *(name if each.required else f"[{name}]" for each, name in names.items())]


def argument_name(argument: TyperArgument) -> str:
    return (argument.metavar or (argument.name or "").upper()) + ("..." if argument.nargs == -1 else "")


def register(app: typer.Typer, package: str, name: str, *, shown: str | None = None) -> None:
    """Add a command: the function, or Typer group, named like its module."""
    module = import_module(f"{package}.{name}")
    command = getattr(module, name)
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        settings = {"groups": getattr(module, "GROUPS", {}), "shown": shown}
        kind = type(f"{name.title()}Command", (GroupedCommand,), settings)
        app.command(help=_help(command), hidden=getattr(module, "HIDDEN", False), cls=kind)(command)


def _help(function: Callable[..., None]) -> str:
    """Help text with one line per paragraph; examples, marked by \\b, stay as they are."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(each if each.startswith("\b") else " ".join(each.split()) for each in paragraphs)


def run(app: typer.Typer, name: str, call: Call, known_errors: tuple[type[Exception], ...] = ()) -> None:
    """Run the command and exit with its code; errors print one line and exit with code 2.

    known_errors: further errors whose text is a message for the user
    """
    _show_log()
    try:
        code = app(call.arguments, prog_name=name, standalone_mode=False, obj=call)
        sys.stdout.flush()  # here, so that a full disk is reported as an error of this command
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:  # `spider predict ... | head`: the reader stopped reading
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
    """Print log messages of the package (such as compiling kernels) to standard error."""
    log = logging.getLogger("spidertensor")
    log.setLevel(logging.INFO)
    if not any(isinstance(each, _ToStderr) for each in log.handlers):
        log.addHandler(_ToStderr())


def _message(error: Exception) -> str | None:
    """The message for the user; None for an internal error."""
    if hasattr(error, "format_message"):  # a usage error from typer or click
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
    """Whether writing standard output failed; errors of other files carry a file name."""
    full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
    if full:
        _drop_output()
    return full


def _drop_output() -> None:
    """Redirect standard output to null, so that the flush at exit does not fail again."""
    with contextlib.suppress(OSError):  # replaced by something that is not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
