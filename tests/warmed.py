"""What every `spider` would import and load first, for the process that forked.py forks from."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import pkgutil

from spidertensor import cli
from spidertensor.cli.warmup import warmup

OURS = (
    *(f"spidertensor.cli.{module.name}" for module in pkgutil.iter_modules(cli.__path__)),
    *("spidertensor.service.server", "spidertensor.estimator.columns.bad_cells"),
    *("spidertensor.evaluation.own_file", "spidertensor.evaluation.with_attributes"),
    *("spidertensor_study.grid", "spidertensor_study.registry"),
)
# what these import only when a command runs: most of the time that it takes
LATER = ("pandas", "pyarrow.csv", "pyarrow.pandas_compat", "rich.progress", "rich.table", "typer._adapters")
for name in (*OURS, *LATER, "confluent_kafka", "redis", "nats"):
    with contextlib.suppress(ImportError):  # an extra that is not installed, or another version
        importlib.import_module(name)
with contextlib.redirect_stdout(io.StringIO()):
    warmup()
gc.collect()
gc.freeze()  # the collector would touch, and so copy, all of this in every process
