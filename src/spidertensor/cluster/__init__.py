"""Several workers, on one machine or many: docs/cluster.md."""
