"""`spider fit --predictions`: what was predicted for each row just before it was learned.

The rows that a checkpoint has learned are on disk before the checkpoint is, and the checkpoint says how many
bytes they take. So a run that goes on from a checkpoint cuts the file there, and no row is missing or twice,
however the run before it ended.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spidertensor.cli.errors import CommandError
from spidertensor.cli.writers import DELIMITERS, rows_writer
from spidertensor.method import Update
from spidertensor.sources import source_by_name
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.writing import naming


class Predictions:
    """A file that rows are appended to: row, ids, value, and mean, std and below or a probability."""

    def __init__(
        self, path: Path, names: Sequence[str], likelihood: Likelihood, *, size: int | None, replace: bool
    ) -> None:
        """names: of the modes and the value, if there is one; size: of the file at the checkpoint that the
        run goes on from; replace: a file of predictions may be there, and its rows will come again"""
        self.path, self.names, self.likelihood, self.failed = path, list(names), likelihood, False
        target = source_by_name(str(path))
        self.kind = target.format.name
        if target.compression is not None or self.kind not in (*DELIMITERS, "jsonl"):
            raise CommandError(f"{path}: predictions are appended to, so they can be csv, tsv or jsonl")
        self.columns = ["row", *self.names, *self._new_names()]
        if twice := {name for name in self.columns if self.columns.count(name) > 1}:
            raise CommandError(f"{path}: two columns would be called {min(twice)!r}: rename that of SOURCE")
        if size is not None:
            self._check_goes_on(size)
        elif path.exists() and not replace:
            raise CommandError(
                f"{path} exists and does not go on where the model does: name another file, or remove it"
            )
        elif path.exists() and not self._is_ours():
            raise CommandError(f"{path}: not a file of these predictions: name another one")
        with naming(path):
            self.file = path.open("r+b" if size else "wb")
            self.size = self.file.seek(size or 0)
            self.file.truncate()

    def __enter__(self) -> Predictions:
        return self

    def __exit__(self, *_: Any) -> None:
        with contextlib.suppress(OSError):  # what a checkpoint counts is on disk already
            self.file.close()

    def add(self, rows: Any, columns: Sequence[Any], update: Update) -> None:
        """columns: those of `names`"""
        lists = [each.tolist() if isinstance(each, np.ndarray) else each for each in (rows, *columns)]
        records = [dict(zip(self.columns, each, strict=False)) for each in zip(*lists, strict=True)]
        text = io.StringIO(newline="")
        rows_writer(text, self.kind, header=not self.size)(records, self._new(update))
        data = text.getvalue().encode("utf-8", "backslashreplace")
        self.failed = True  # until all of it is written: no checkpoint may count half of it
        with naming(self.path):
            self.file.write(data)
        self.failed, self.size = False, self.size + len(data)

    def flush(self) -> int:
        """Everything is on disk when this returns, which says how many bytes that is."""
        if self.failed:
            raise CommandError(f"{self.path}: could not be written")
        with naming(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
        return self.size

    def _new_names(self) -> list[str]:
        return ["mean", "std", "below"] if self.likelihood.intervals else [self.likelihood.mean_name]

    def _new(self, update: Update) -> dict[str, Any]:
        if update.below is None:
            return {self.likelihood.mean_name: self.likelihood.expected(update.mean, update.var)}
        below = update.below
        if self.kind == "jsonl":  # which has no NaN: an entry that was refused
            below = np.array([None if math.isnan(each) else each for each in below.tolist()], object)
        mean, std = self.likelihood.expected(*update[:2]), self.likelihood.std(*update[:3])
        return {"mean": mean, "std": std, "below": below}

    def _check_goes_on(self, size: int) -> None:
        found = self.path.stat().st_size if self.path.is_file() else 0
        whole = found >= size and self._is_ours()
        if whole and size:
            with self.path.open("rb") as file:
                file.seek(size - 1)
                whole = file.read(1) == b"\n"
        if not whole:
            raise CommandError(
                f"{self.path}: is not the file of predictions that the model goes on with, or was changed"
            )

    def _is_ours(self) -> bool:
        with self.path.open("rb") as file:
            first = file.readline(1 << 20)
        if self.kind == "jsonl":
            return not first or first.startswith(b'{"row": ')
        text = io.StringIO(newline="")
        empty = {name: np.empty(0) for name in self._new_names()}
        rows_writer(text, self.kind, names=["row", *self.names])([], empty)
        return not first or first == text.getvalue().encode("utf-8", "backslashreplace")
