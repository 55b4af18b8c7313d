"""Several workers on one machine or, with Ray, on many: docs/cluster.md."""

from spidertensor.cluster.fit import fit, on_workers

__all__ = ["fit", "on_workers"]
