"""Tables of ids read into memory: users, candidates, exclusions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spidertensor.cli import files
from spidertensor.cli.bad_rows import refuse
from spidertensor.cli.errors import CommandError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from spidertensor.estimator.loading import Estimator


def read_ids(
    option: str, name: str, estimator: Estimator, needed: Sequence[str], allowed: Sequence[str] = ()
) -> dict[str, NDArray[Any]]:
    """Read ids by mode from a file: the needed modes, and those allowed modes that it has columns for.

    Other columns are ignored. A bad row is an error.
    """
    import numpy as np

    from spidertensor import sources
    from spidertensor.learner import position

    if name == "-":
        raise CommandError(f"{option} takes a file, not standard input")
    source = sources.source_by_name(name)
    modes = [*needed]
    if allowed:
        first = next(iter(sources.read(source, needed, keep=True)), None)
        modes += [mode for mode in allowed if first is not None and mode in _names(first.records)]
    at = [estimator.mode_names_.index(mode) for mode in modes]
    texts, bins = position.all_text(estimator), position.bins(estimator)
    parts: list[list[NDArray[Any]]] = [[np.empty(0, np.int64)] for _ in modes]
    chunks = sources.read(
        source, modes, all_text=[texts[mode] for mode in at], bins=[bins[mode] for mode in at],
        missing=files.missing_id(estimator),
    )  # fmt: skip
    for chunk in chunks:
        refuse(source, chunk.bad)
        for part, column in zip(parts, chunk.columns, strict=True):
            part.append(column)
    return {mode: _joined(part) for mode, part in zip(modes, parts, strict=True)}


def unseen(estimator: Estimator, ids: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """(n,) whether a row has an id that the model has not learned."""
    import numpy as np

    from spidertensor.estimator.inputs import Columns

    n = len(next(iter(ids.values()))) if ids else 0
    names = estimator.mode_names_
    known = estimator.seen(Columns([ids.get(name, np.zeros(n, np.int64)) for name in names]))
    return np.array([not all(row) for row in known[:, [names.index(name) for name in ids]].tolist()], bool)


def _names(records: Any) -> Sequence[str]:
    return list(records[0]) if isinstance(records, list) else records.column_names


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    import numpy as np

    filled = [part for part in parts if len(part)]
    return np.concatenate(filled) if filled else parts[0]
