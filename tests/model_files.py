"""Files of models as tests compare and damage them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

# Numbers to damage a file with.
SPECIAL = (np.nan, np.inf, -np.inf, -1.0, 0.0, 1e-45, 5.9, 1e17, -1e17, 1e38, -1e38, 1e-300, 1e300)


def file_bytes(model, position=None) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        model.save(path, position)
        return path.read_bytes()


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """The arrays of two models: the same names and numbers."""
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def saved(model, folder: Path) -> bytes:
    model.save(folder / "model")
    return (folder / "model").read_bytes()
