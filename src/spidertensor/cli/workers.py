"""`--workers`: learn one model in several threads, or its members in processes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import typer

from spidertensor.cli.errors import CommandError

Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Learning threads; with --cluster, at most one process for each model of the committee.",
    ),
]
OnCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        help="With --workers: the Ray cluster: auto, host:port of its head, or local to start one.",
    ),
]
Part = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="With --workers: most entries that each learns between exchanges. [default: 16384]",
    ),
]


def check(workers: int | None, cluster: str | None, part: int | None) -> None:
    if workers is None and (cluster is not None or part is not None):
        raise CommandError(f"--{'cluster' if cluster else 'part'} is for --workers")


@contextmanager
def placed(estimator: Any, workers: int | None, cluster: str | None, part: int | None) -> Iterator[Any]:
    """Let the estimator learn with `workers` workers inside the block."""
    if workers is None:
        yield None
        return
    from spidertensor.cluster import on_workers
    from spidertensor.cluster.rounds import PART

    with ExitStack() as stack:
        try:
            where = on_workers(estimator, workers=workers, address=cluster, part=part or PART)
            entered = stack.enter_context(where)
        except (ValueError, ModuleNotFoundError) as error:  # an invalid setting, or no Ray
            raise CommandError(str(error)) from None
        yield entered
