"""`spider warmup`: compile the kernels before the first entry arrives."""

from __future__ import annotations

from collections import Counter
from time import perf_counter

from spidertensor.cli import output
from spidertensor.cli.errors import CommandError


def warmup() -> None:
    """Compile the kernels ahead of time.

    One compilation covers any number of modes and layers, all kinds of values, learning and prediction.

    \b
    spider warmup
    NUMBA_CACHE_DIR=/var/cache/spider spider warmup

    Kernels of the sequential engine are cached in NUMBA_CACHE_DIR, else next to the installed
    package, else in the user's cache folder. The cache may be read-only later.
    """
    from spidertensor.spider.compiled import cache_folder, compilations

    folder = cache_folder()
    if folder is None:
        raise CommandError("no folder for compiled kernels: set NUMBA_CACHE_DIR to a writable folder")
    began, before = perf_counter(), compilations()
    _learn_and_predict()
    compiled = sorted(Counter(compilations()) - Counter(before))
    what = f"compiled {', '.join(compiled)}" if compiled else "nothing left to compile"
    output.say(f"{what} ({perf_counter() - began:.1f} s)")
    output.say(f"kept in {folder}")


def _learn_and_predict() -> None:
    """Run every kernel once: model, floors of spider fit, classifier committees, rankings."""
    import numpy as np

    from spidertensor.evaluation import floors
    from spidertensor.method import Batch
    from spidertensor.spider import learning_curve
    from spidertensor.spider.committee import committee
    from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT
    from spidertensor.spider.network import Network
    from spidertensor.spider.parts import touched
    from spidertensor.spider.posterior import Prior
    from spidertensor.spider.quick_moments import quick_moments
    from spidertensor.spider.sequential import sequential

    index, network = np.zeros((1, 2), np.int64), Network((1, 1))
    member = sequential(network, GAUSSIAN)
    model = committee([member], GAUSSIAN)
    PROBIT.mixture(np.ones((1, 1)), np.ones((1, 3, 1)))
    learned, _ = member.update(member.init(0), Batch(index, np.ones(1)))
    for exact in (False, True):
        quick_moments(learned, network, Prior(), list(index.T), exact=exact)
    touched(index[0], np.full(1, -1, np.int32), *np.empty((2, 2), np.int64))
    learning_curve.note(*learning_curve.start(), 0, learning_curve.SQUARES, False, *np.ones((4, 1)))
    for method in (model, floors.mean(GAUSSIAN), floors.biases(2, GAUSSIAN)):
        state, _ = method.update(method.init(0), Batch(index, np.ones(1)))
        method.predict(state, index)
