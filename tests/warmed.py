"""What every `spider` would import and load first, for the process that forked.py forks from."""

from __future__ import annotations

import contextlib
import importlib
import io

from spidertensor.cli.warmup import warmup

OURS = ("cli.fit_loop", "cli.run_start", "cli.predict", "service.server")
for name in (*(f"spidertensor.{each}" for each in OURS), "confluent_kafka", "redis", "nats"):
    with contextlib.suppress(ImportError):  # an extra that is not installed
        importlib.import_module(name)
with contextlib.redirect_stdout(io.StringIO()):
    warmup()
