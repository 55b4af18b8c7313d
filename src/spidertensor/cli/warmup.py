"""`spider warmup`: compile the kernels ahead of time, so that a deployment's first entry does not wait."""

from __future__ import annotations

from collections import Counter
from time import perf_counter
from typing import Annotated

import typer

from spidertensor.cli import common
from spidertensor.cli.common import CommandError

Modes = Annotated[
    str, typer.Option(metavar="N,N", help="Numbers of modes to compile for: 3, or several: 2,3,4.")
]
Hidden = Annotated[str, typer.Option(metavar="N,N", help="Widths of the hidden layers, as in spider fit.")]
LikelihoodName = Annotated[
    str | None, typer.Option("--likelihood", metavar="NAME", help="gaussian or probit. By default both.")
]


def warmup(modes: Modes = "2,3", hidden: Hidden = "50,50", likelihood: LikelihoodName = None) -> None:
    """Compile the kernels of the sequential engine and keep them on disk, for learning and for prediction.

    \b
    spider warmup
    spider warmup --modes 4 --likelihood probit
    NUMBA_CACHE_DIR=/var/cache/spider spider warmup

    They are kept in the folder that NUMBA_CACHE_DIR names, else beside the installed package, else in the
    user's cache folder. A folder that is read-only later is still read.
    """
    from spidertensor.spider.compiled import cache_folder
    from spidertensor.spider.likelihoods import LIKELIHOODS

    numbers, widths = common.numbers("--modes", modes), tuple(common.numbers("--hidden", hidden))
    if not numbers or min(numbers) < 1:
        raise CommandError(f"--modes takes numbers from 1, not {modes!r}")
    if likelihood is not None and likelihood not in LIKELIHOODS:
        raise CommandError(f"--likelihood takes {' or '.join(LIKELIHOODS)}, not {likelihood!r}")
    folder = cache_folder()
    if folder is None:
        raise CommandError("no folder for compiled kernels: set NUMBA_CACHE_DIR to one that can be written")
    for n_modes in numbers:
        for name in [likelihood] if likelihood else LIKELIHOODS:
            began = perf_counter()
            compiled = _compile(n_modes, widths, name)
            what = f"compiled {', '.join(compiled)}" if compiled else "nothing left to compile"
            count = "1 mode" if n_modes == 1 else f"{n_modes} modes"
            print(f"{count}, {name}: {what} ({perf_counter() - began:.1f} s)", flush=True)
    print(f"kept in {folder}")


def _compile(n_modes: int, hidden: tuple[int, ...], likelihood: str) -> list[str]:
    """Learn and predict one entry; returns the names of the kernels that were compiled for it."""
    import numpy as np

    from spidertensor.method import Batch
    from spidertensor.spider.compiled import compilations
    from spidertensor.spider.network import Network
    from spidertensor.spider.sequential import sequential

    before = compilations()
    method = sequential(Network((1,) * n_modes, hidden), likelihood)
    index = np.zeros((1, n_modes), np.int64)
    state, _ = method.update(method.init(0), Batch(index, np.ones(1)))
    method.predict(state, index)
    return sorted(Counter(compilations()) - Counter(before))
