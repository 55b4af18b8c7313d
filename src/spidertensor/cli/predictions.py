"""`spider fit --predictions`: write the prediction made for each row just before it was learned.

Predictions are on disk before the checkpoint that covers them, and the checkpoint stores their size in
bytes. A resumed run truncates the file to that size, so no row is missing or duplicated, however the previous
run ended.
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
    """An append-only file with row, ids, value, and mean, std and below, or a probability."""

    def __init__(
        self, path: Path, names: Sequence[str], likelihood: Likelihood, *, size: int | None, replace: bool
    ) -> None:
        """Open the file and truncate it to `size`.

        names:   of the modes and, if there is one, the value
        size:    bytes at the checkpoint to resume from
        replace: whether to overwrite an existing predictions file
        """
        self.path, self.names, self.likelihood, self.failed = path, list(names), likelihood, False
        target = source_by_name(str(path))
        self.kind = target.format.name
        if target.compression is not None or self.kind not in (*DELIMITERS, "jsonl"):
            raise CommandError(f"{path}: predictions must be csv, tsv or jsonl without compression")
        self.columns = ["row", *self.names, *self._new_names()]
        if twice := {name for name in self.columns if self.columns.count(name) > 1}:
            raise CommandError(
                f"{path}: two columns would be called {min(twice)!r}; rename the one in SOURCE"
            )
        if size is not None:
            self._check_goes_on(size)
        elif path.exists() and not replace:
            raise CommandError(
                f"{path} exists and does not belong to this run; choose another file, or remove it"
            )
        elif path.exists() and not self._is_ours():
            raise CommandError(f"{path}: not a predictions file of this model; choose another file")
        with naming(path):
            self.file = path.open("r+b" if size else "wb")
            self.size = self.file.seek(size or 0)
            self.file.truncate()

    def __enter__(self) -> Predictions:
        return self

    def __exit__(self, *_: Any) -> None:
        with contextlib.suppress(OSError):  # what a checkpoint covers is already on disk
            self.file.close()

    def add(self, rows: Any, columns: Sequence[Any], update: Update, likelihood: Likelihood) -> None:
        """Append predictions.

        columns:    in the order of `names`
        likelihood: with what the model has learned about it
        """
        self.likelihood = likelihood
        lists = [each.tolist() if isinstance(each, np.ndarray) else each for each in (rows, *columns)]
        records = [dict(zip(self.columns, each, strict=False)) for each in zip(*lists, strict=True)]
        text = io.StringIO(newline="")
        rows_writer(text, self.kind, header=not self.size)(records, self._new(update))
        data = text.getvalue().encode("utf-8", "backslashreplace")
        self.failed = True  # until everything is written, so that no checkpoint covers half of it
        with naming(self.path):
            self.file.write(data)
        self.failed, self.size = False, self.size + len(data)

    def flush(self) -> int:
        """Write everything to disk and return the size in bytes."""
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
            return {self.likelihood.mean_name: self.likelihood.expected(*update[:3])}
        below = update.below
        if self.kind == "jsonl":  # JSON has no NaN, which marks refused entries
            below = np.array([None if math.isnan(each) else each for each in below.tolist()], object)
        mean, std = self.likelihood.expected(*update[:3]), self.likelihood.std(*update[:3])
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
                f"{self.path}: not the predictions file that this model continues, or it was changed"
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
