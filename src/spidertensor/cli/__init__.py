"""The command `spider`: parse, call, print. What a command needs is loaded when that command runs."""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

import spidertensor
from spidertensor.cli import evaluation, experiment, fit, model, predict, reference, report, warmup
from spidertensor.cli.common import CommandError, note

app = typer.Typer(
    name="spider",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _help(function: Callable[..., None]) -> str:
    """Each paragraph on one line, for the terminal to break; examples, after a \\b, stay as they are."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(each if each.startswith("\b") else " ".join(each.split()) for each in paragraphs)


for _command in (
    fit.fit, predict.predict, model.recommend, model.info, evaluation.evaluate, experiment.experiment,
    report.report, evaluation.demo, warmup.warmup,
):  # fmt: skip
    app.command(help=_help(_command))(_command)
app.add_typer(evaluation.data, name="data")


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
        print(f"spider {spidertensor.__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command(hidden=True)
def docs() -> None:
    """Print docs/command.md."""
    print(reference.markdown(typer.main.get_command(app)), end="")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and leave with its exit code; an error is one line and code 2."""
    _show_log()
    try:
        code = app(arguments, prog_name="spider", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:  # `spider predict ... | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit fails again
        code = 141
    except Exception as error:
        message = _message(error)
        if message is None:
            raise
        print("spider:", " ".join(message.split()), file=sys.stderr)
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
    """What to tell the user; None if it is a mistake of this program and not of the input."""
    if hasattr(error, "format_message"):  # of the command line: typer's own or click's, by its version
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context else ""
        return error.format_message().rstrip(".") + hint  # pyright: ignore[reportAttributeAccessIssue]
    from spidertensor.checkpoint import CheckpointError
    from spidertensor.estimator.inputs import EntryError
    from spidertensor.sources import SourceError
    from spidertensor.study.datasets import DatasetError
    from spidertensor.study.rows import ExperimentError, ResultsError

    of_input = CommandError | SourceError | EntryError | CheckpointError | DatasetError
    if isinstance(error, of_input | ExperimentError | ResultsError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return None
