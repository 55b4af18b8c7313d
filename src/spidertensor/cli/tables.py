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
    option: str,
    name: str,
    estimator: Estimator,
    needed: Sequence[str],
    allowed: Sequence[str] = (),
    attributes: Sequence[str] = (),
) -> dict[str, NDArray[Any]]:
    """Read ids by mode from a file: the needed modes, and those allowed modes that it has columns for.

    Other columns are ignored, except those of `attributes` that it has. A bad row is an error.
    """
    import numpy as np

    from spidertensor import sources
    from spidertensor.learner import position
    from spidertensor.learner.attributes import kinds
    from spidertensor.sources.attributes import with_types

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
        missing=files.missing_id(estimator), attributes=attributes,
    )  # fmt: skip
    cells: dict[str, list[NDArray[Any]]] = {}
    for chunk in chunks:
        chunk = with_types(chunk, kinds(estimator), source, modes)
        refuse(source, chunk.bad)
        for part, column in zip(parts, chunk.columns, strict=True):
            part.append(column)
        for attribute, column in chunk.attributes.items():
            cells.setdefault(attribute, []).append(column)
    ids = {mode: joined(part) for mode, part in zip(modes, parts, strict=True)}
    return ids | {attribute: joined(part) for attribute, part in cells.items()}


def parse_attribute(estimator: Estimator, name: str, text: str) -> Any:
    """Parse an attribute from the command line, as a cell of a csv."""
    import numpy as np

    from spidertensor import sources
    from spidertensor.learner.attributes import kinds
    from spidertensor.sources.attributes import typed

    cell = np.fromiter([text or None], object, 1)
    columns, wrong = typed({name: cell}, kinds(estimator), sources.source_by_name("-", "csv"))
    if wrong:
        raise CommandError(f"--given {wrong[0]}")
    return columns[name].tolist()[0]


def unseen(estimator: Estimator, ids: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """(n,) whether a row has an id that the model has not learned."""
    import numpy as np

    from spidertensor.estimator.inputs import Columns
    from spidertensor.learner.attributes import modes_with_ids

    names = estimator.mode_names_
    with_ids = [names[mode] for mode in modes_with_ids(estimator, len(names))]
    ids = {name: column for name, column in ids.items() if name in with_ids}  # without attributes
    n = len(next(iter(ids.values()))) if ids else 0
    known = estimator.seen(Columns([ids.get(name, np.zeros(n, np.int64)) for name in with_ids]))
    return np.array([not all(row) for row in known[:, [names.index(name) for name in ids]].tolist()], bool)


def _names(records: Any) -> Sequence[str]:
    return list(records[0]) if isinstance(records, list) else records.column_names


def joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Parts of a column as one."""
    import numpy as np

    filled = [part for part in parts if len(part)]
    return np.concatenate(filled) if filled else parts[0]
