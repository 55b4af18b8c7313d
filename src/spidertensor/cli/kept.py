"""Earlier versions of a model, beside it: NAME.kept-1, NAME.kept-2 ..., the latest with the highest number.

A version keeps its number, so what `spider rollback --list` has shown stays true. At every
instant there is a whole model under its own name: a version is a second name of the file (a hard link), made
before the file is replaced.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from spidertensor.writing import replacing

_DIGEST = 32  # bytes at the end of a model file: its checksum, by which two versions are compared


def versions(path: Path) -> dict[int, Path]:
    """The versions that are kept of a model, by their numbers, in their order."""
    model = Path(os.path.realpath(path))
    name = re.compile(re.escape(model.name) + r"\.kept-([1-9][0-9]{0,8})")
    found = {int(match[1]): each for each in model.parent.iterdir() if (match := name.fullmatch(each.name))}
    return {number: found[number] for number in sorted(found) if found[number].is_file()}


def before_run(path: Path, most: int) -> None:
    """Keep the model, which a run is about to replace, and the `most` latest versions in all.

    Not twice: a run that was killed before it could replace the model has kept it already.
    """
    if not path.is_file():
        return
    known = versions(path)
    if not (known and same(path, known[max(known)])):
        _keep(path, known)
    for old in list(versions(path).values())[:-most]:
        old.unlink(missing_ok=True)


def go_back(path: Path, version: Path) -> int | None:
    """Make a version the model again; returns the number under which the model that was there is kept."""
    number = None
    if path.is_file():
        known = versions(path)
        number = next((n for n, each in known.items() if same(path, each)), None) or _keep(path, known)
    # A copy, not a link: whoever writes into the model, such as cp, must not change the version.
    with replacing(path) as handle, version.open("rb") as file:
        shutil.copyfileobj(file, handle)
    return number


def same(one: Path, other: Path) -> bool:
    return one.samefile(other) or _digest(one) == _digest(other)


def _digest(path: Path) -> tuple[int, bytes]:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _DIGEST, 0))
        return size, file.read()


def _keep(path: Path, known: dict[int, Path]) -> int:
    model, number = Path(os.path.realpath(path)), max(known, default=0) + 1
    kept = model.with_name(f"{model.name}.kept-{number}")
    try:
        os.link(model, kept)
    except FileExistsError:  # another process, where there are no locks: nothing may be overwritten
        raise
    except OSError:  # a file system without hard links
        with replacing(kept) as handle, model.open("rb") as file:
            shutil.copyfileobj(file, handle)
        shutil.copystat(model, kept)
    return number
