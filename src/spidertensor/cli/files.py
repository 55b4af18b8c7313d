"""Files of a command: models, custom networks, and checks of output files."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spidertensor.cli import output
from spidertensor.cli.errors import CommandError

if TYPE_CHECKING:
    from spidertensor import CustomNetwork
    from spidertensor.estimator.loading import Estimator

PICTURES = (".png", ".svg", ".pdf")


def load_model(path: Path, network: str | None) -> Estimator:
    from spidertensor.estimator import load

    try:
        return load(path, None if network is None else network_by_name(network))
    except ModuleNotFoundError as error:  # JAX is not installed
        raise CommandError(str(error)) from None


def network_by_name(text: str) -> CustomNetwork:
    """Import the network of --network. Importing runs the module, so never take its name from a file."""
    from spidertensor import CustomNetwork

    module, _, name = text.partition(":")
    if not (module and name):
        raise CommandError(f"--network takes MODULE:NAME, such as networks:costco, not {text!r}")
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        imported = import_module(module)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) and error.name else ""
        reason = f"{type(error).__name__}: {error}"
        if missing == "jax":
            reason = "needs jax: pip install 'spidertensor[jax]'"
        elif missing and f"{module}.".startswith(f"{missing}."):
            reason = f"no module {missing!r} in this folder or installed"
        raise CommandError(f"--network {text}: {reason}") from None
    finally:
        sys.path.remove(folder)
    found = getattr(imported, name, None)
    if found is None:
        raise CommandError(f"--network {text}: {module} has no {name!r}")
    if not isinstance(found, CustomNetwork):
        raise CommandError(f"--network {text}: a {type(found).__name__}, not a CustomNetwork")
    return found


def missing_id(model: Estimator) -> str:
    """Default of --missing-id for predictions: "own" if the model was fitted so, else "error".

    Never "skip": callers may count on one prediction per row.
    """
    match model.position_:
        case {"missing_id": "own"}:
            return "own"
    return "error"


def parse_id(model: Estimator, mode: int, text: str) -> Any:
    """Parse an id from the command line; in a binned mode, a number becomes its bin."""
    import numpy as np  # imported late: slow

    from spidertensor.learner.position import bins

    of_mode = bins(model)[mode]
    if of_mode is not None:
        try:
            return of_mode.ids(np.array([float(text)]))[0]
        except ValueError:
            pass  # the name of a bin
    return model._parse_ids(mode, [text])[0]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a model against writes by other commands; print a note if it cannot be locked."""
    from spidertensor.file_lock import held

    with held(path) as impossible:
        if impossible:
            output.note(
                f"note: {path} cannot be locked ({impossible}); make sure that no other command writes it"
            )
        yield


def check_no_journal(model: Path) -> None:
    """Raise an error if a killed server has left entries for this model, or ids to forget, in its journal."""
    journal = model.with_name(f"{model.name}.journal")
    is_acknowledged = journal.with_name(f"{journal.name}-end").exists()  # although damage may hide it
    if not (journal.exists() or is_acknowledged):
        return
    held = "entries"
    try:
        with closing(sqlite3.connect(f"{journal.absolute().as_uri()}?mode=ro", uri=True)) as file:
            if not (file.execute("select 1 from requests limit 1").fetchone() or is_acknowledged):
                return
    except (sqlite3.Error, ValueError):
        held = "something"
    raise CommandError(
        f"{journal}: a server that was killed has left {held} there: start and stop spider serve --model "
        f"{model}, which learns them, and repeat the command"
    )


def check_apart(files: dict[str, Path | str | None]) -> None:
    """Raise an error if two files of a command are the same."""
    there = [(name, Path(path)) for name, path in files.items() if path is not None]
    for (name, path), (other, other_path) in combinations(there, 2):
        both = path.exists() and other_path.exists()
        if path.samefile(other_path) if both else path.resolve() == other_path.resolve():
            raise CommandError(f"{other_path}: {name} and {other} are the same file")


def check_writable(path: Path) -> None:
    """Fail now rather than after hours of learning."""
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise CommandError(f"{path}: No such file or directory: its folder must exist")
    if path.is_dir():
        raise CommandError(f"{path}: is a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CommandError(f"{path}: its folder is not writable")


def check_picture(path: Path) -> None:
    """Fail now if --plot cannot draw into this file."""
    if path.suffix.lower() not in PICTURES:
        raise CommandError(f"--plot {path}: use one of the extensions {', '.join(PICTURES)}")
    if find_spec("matplotlib") is None:
        raise CommandError("--plot needs matplotlib: pip install 'spidertensor[plot]'")
    check_writable(path)
