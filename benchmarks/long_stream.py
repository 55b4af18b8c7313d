"""A stream of 20 million entries over fixed nodes, as JSON: does memory grow, does anything break, does it
still learn? At three quarters of the stream half of the nodes of mode 0 take on the factors of others, at
the end every node does.

    python benchmarks/long_stream.py [entries]
"""

from __future__ import annotations

import json
import resource
import sys

import numpy as np

from spidertensor import SpiderRegressor

CHUNK = 100_000


def main(total: int) -> None:
    rng = np.random.default_rng(0)
    nodes = 1_000
    truth = [rng.normal(size=(nodes, 3)) for _ in range(2)]
    model = SpiderRegressor(scaling=(0.0, 1.0))

    def chunk() -> tuple[np.ndarray, np.ndarray]:
        X = rng.integers(0, nodes, (CHUNK, 2))
        f = np.tanh((truth[0][X[:, 0]] * truth[1][X[:, 1]]).sum(axis=1))
        return X, f + 0.1 * rng.normal(size=CHUNK)

    changes = {total * 3 // 4: nodes // 2, total * 9 // 10: nodes}
    curve, start_memory = [], 0
    for done in range(0, total, CHUNK):
        if done in changes:
            changed = changes[done]
            truth[0][:changed] = np.roll(truth[0][:changed], 1, axis=0)
        X, y = chunk()
        update = model.learn(X, y)
        if done == CHUNK * 5:
            start_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        error = float(np.sqrt(np.mean((update.mean - y) ** 2)))
        if done % max(CHUNK, total // 40) == 0 or done - CHUNK in changes or done in changes:
            curve.append([done, round(error, 4)])
    posterior = model._fitted().state.posterior
    variances = np.concatenate([g.var.ravel() for g in (*posterior.factors, *posterior.weights)])
    print(
        json.dumps(
            {
                "entries": model.n_entries_,
                "running_rmse": curve,
                "smallest_variance": float(variances.min()),
                "all_finite": bool(np.isfinite(variances).all()),
                "rejected": model.n_rejected_,
                "memory_growth_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start_memory,
            }
        )
    )


if __name__ == "__main__":
    main(int(float(sys.argv[1])) if len(sys.argv) > 1 else 20_000_000)
