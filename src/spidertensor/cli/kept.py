"""Earlier versions of a model, next to it: NAME.kept-1, NAME.kept-2, ...; the highest number is the latest.

Versions keep their numbers, so the output of `spider rollback --list` stays valid. A version is a hard link
to the model, made before the model is replaced, so a complete model always exists under its own name.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from spidertensor.writing import replacing

_DIGEST_BYTES = 32  # checksum at the end of a model file, used to compare versions


def versions(path: Path) -> dict[int, Path]:
    """Kept versions of a model by number, in ascending order."""
    model = Path(os.path.realpath(path))
    name = re.compile(re.escape(model.name) + r"\.kept-([1-9][0-9]{0,8})")
    found = {int(match[1]): each for each in model.parent.iterdir() if (match := name.fullmatch(each.name))}
    return {number: found[number] for number in sorted(found) if found[number].is_file()}


def before_run(path: Path, most: int) -> None:
    """Keep the model that a run is about to replace, and delete all but the `most` latest versions.

    Skipped if a run that was killed before replacing the model has already kept it.
    """
    if not path.is_file():
        return
    known = versions(path)
    if not (known and same(path, known[max(known)])):
        _keep(path, known)
    for old in list(versions(path).values())[:-most]:
        old.unlink(missing_ok=True)


def go_back(path: Path, version: Path) -> int | None:
    """Restore a version. Returns the number under which the replaced model is kept."""
    number = None
    if path.is_file():
        known = versions(path)
        number = next((n for n, each in known.items() if same(path, each)), None) or _keep(path, known)
    # A copy, not a link: writing into the model in place (as cp does) must not change the version.
    with replacing(path) as handle, version.open("rb") as file:
        shutil.copyfileobj(file, handle)
    return number


def same(one: Path, other: Path) -> bool:
    return one.samefile(other) or _digest(one) == _digest(other)


def _digest(path: Path) -> tuple[int, bytes]:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _DIGEST_BYTES, 0))
        return size, file.read()


def _keep(path: Path, known: dict[int, Path]) -> int:
    model, number = Path(os.path.realpath(path)), max(known, default=0) + 1
    kept = model.with_name(f"{model.name}.kept-{number}")
    try:
        os.link(model, kept)
    except FileExistsError:  # written by another process where locks are unavailable: never overwrite it
        raise
    except OSError:  # a file system without hard links
        with replacing(kept) as handle, model.open("rb") as file:
            shutil.copyfileobj(file, handle)
        shutil.copystat(model, kept)
    return number
