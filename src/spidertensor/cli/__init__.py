"""The command `spider`: parse, call, print. Heavy packages are imported when a command runs.

A new command: its file, and its name in COMMANDS.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated

import typer

import spidertensor
from spidertensor.cli.errors import CommandError, worded
from spidertensor.cli.output import note, say

# Each in a file of its own, in the order of `spider --help`.
COMMANDS = (
    "fit", "predict", "recommend", "rollback", "info", "serve", "forget", "evaluate", "methods", "data",
    "experiment", "report", "demo", "warmup", "docs",
)  # fmt: skip

app = typer.Typer(
    name="spider",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _help(function: Callable[..., None]) -> str:
    """Each paragraph on one line, to be wrapped by the terminal; examples, after a \\b, stay as they are."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(each if each.startswith("\b") else " ".join(each.split()) for each in paragraphs)


def _register(name: str) -> None:
    """A command is the function, or the Typer group, with the name of its module."""
    module = import_module(f"spidertensor.cli.{name}")
    command = getattr(module, name)
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(help=_help(command), hidden=getattr(module, "HIDDEN", False))(command)


for _name in COMMANDS:
    _register(_name)


@app.callback(invoke_without_command=True)
def spider(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Streaming Bayesian deep tensor factorization: learn from a stream of entries, predict with uncertainty.

    \b
    spider demo
    spider fit ratings.csv --modes user,movie --value rating
    spider recommend ratings.spider --given user=42 --over movie

    `spider COMMAND --help` has more examples.
    """
    if version:
        say(f"spider {spidertensor.__version__}")
    elif context.invoked_subcommand is None:
        say(*context.get_help().split("\n"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its code. An error is one line, and code 2."""
    _show_log()
    try:
        code = app(arguments, prog_name="spider", standalone_mode=False)
        sys.stdout.flush()  # here, where a full disk is still an error of this command
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:  # `spider predict ... | head`: the reader has stopped reading
        _drop_output()
        code = 141
    except Exception as error:
        message = _message(error)
        if message is None:
            raise
        note(f"spider: {' '.join(message.split())}")
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
    """What to tell the user; None for a mistake of this program."""
    if hasattr(error, "format_message"):  # an error of the command line, from typer or click
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context else ""
        return error.format_message().rstrip(".") + hint  # pyright: ignore[reportAttributeAccessIssue]
    from spidertensor.faults import Fault
    from spidertensor.study.datasets import DatasetError
    from spidertensor.study.rows import ExperimentError, ResultsError

    if isinstance(error, Fault):
        return worded(error)
    if isinstance(error, CommandError | DatasetError | ExperimentError | ResultsError):
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
