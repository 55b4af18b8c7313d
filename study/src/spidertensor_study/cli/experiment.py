"""`spider-study experiment`: run a grid of methods and data sets."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from spidertensor.cli import output
from spidertensor.cli.errors import CommandError

LINE_EVERY = 30.0  # seconds between lines, if there is no terminal for a bar
# Environment of the processes, unless the user has set it: runs must not compete for cores with their
# threads, nor may one of them take all of a GPU's memory.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def experiment(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="TOML files that describe grids.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder for results. Default: runs; with --quick, runs-quick."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of runs at the same time. Default: 1; with --cluster, all its cores.",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Use seeds 0 to N-1 instead of those in the file.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run the small version that the file describes.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Run failed runs again.")] = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run on a Ray cluster: auto, host:port of its head, or local for one on this machine.",
        ),
    ] = None,
) -> None:
    """Run every method on every data set of a grid.

    Each run is one line in FOLDER/NAME.jsonl, with its settings, scores, running curve, time, machine and
    version. If a run fails, its line has the error. Runs that are done are not repeated when the command is
    started again.

    \b
    spider-study experiment experiments/*.toml --quick --jobs 2
    spider-study experiment experiments/grid.toml --jobs 2
    spider-study report runs --out report
    spider-study experiment experiments/grid.toml --cluster auto

    The machines of a cluster need the data sets at the same place, which SPIDER_DATA names.
    """
    from spidertensor_study import grid as module
    from spidertensor_study import rows

    folder = out or Path("runs-quick" if quick else "runs")
    if len({file.stem for file in files}) < len(files):
        raise CommandError("two files have the same name and would write the same results")
    plans = {file: module.plan(file, seeds=seeds, quick=quick) for file in files}
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    pairs, errors = [], {}
    with _runner(module, jobs, cluster) as run_all:
        for file, runs in plans.items():
            path = folder / f"{file.stem}.jsonl"
            with rows.opened(path) as written:
                missing = written.missing(runs, retry=retry)
                with _Progress(file.stem, written.rows, missing) as progress:
                    try:
                        for row in run_all(missing):
                            written.append({"experiment": file.stem, "jobs": jobs or 1} | row)
                            progress.done(row)
                            if row["error"]:
                                errors[f"{row['settings']['method']}: {row['error']}"] = None
                    except KeyboardInterrupt:
                        output.note(
                            f"stopped. {path} has the runs that are done; the same command continues."
                        )
                        raise
            failed = len(written.missing(runs, retry=True))
            summary = (
                f"{len(runs) - failed} of {len(runs)} runs done, {len(missing) - progress.failed} of them now"
            )
            pairs.append((str(path), summary + (f", {failed} failed" if failed else "")))
    output.print_pairs("", pairs)
    output.note(f"draw the results: spider-study report {folder} --out report")
    if errors:
        raise CommandError("; ".join(errors) + " (run these again with --retry)")


@contextmanager
def _runner(module: Any, jobs: int | None, cluster: str | None) -> Iterator[Callable[[Any], Any]]:
    """Where the runs of a grid run: in processes on this machine, or on a Ray cluster."""
    if cluster is None:
        yield lambda runs: module.run_all(runs, jobs or 1)
        return
    try:
        from spidertensor.cluster import ray_cluster
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise CommandError("--cluster needs Ray: pip install 'spidertensor[ray]'") from None
    with ray_cluster.started(None if cluster == "local" else cluster, jobs or os.cpu_count() or 1):
        yield lambda runs: ray_cluster.run_all(runs, module.run_one, module.died, jobs)


class _Progress:
    """Shows a progress bar on a terminal, otherwise a line now and then; both with the remaining time."""

    def __init__(self, title: str, rows: Sequence[dict[str, Any]], missing: Sequence[dict[str, Any]]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.title, self.rows, self.missing = title, list(rows), list(missing)
        self.failed, self.spent, self.began, self.last_line = 0, 0.0, perf_counter(), perf_counter()
        columns = (TextColumn(title), BarColumn(30), MofNCompleteColumn(), TextColumn("{task.description}"))
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self.task = self.bar.add_task("", total=len(missing))

    def __enter__(self) -> _Progress:
        if sys.stderr.isatty():
            self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def done(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.missing.remove(row["settings"])
        self.failed += row["error"] is not None
        self.spent += row["wall_seconds"]
        settings = row["settings"]
        text = f"{_time(self._left())} left" + (f", {self.failed} failed" if self.failed else "")
        text += f"; last: {settings['method']} on {settings['data']}"
        self.bar.update(self.task, advance=1, description=text)
        if not sys.stderr.isatty() and perf_counter() - self.last_line > LINE_EVERY:
            self.last_line = perf_counter()
            output.note(f"{self.title}: {output.counted(len(self.missing), 'run')} to go, {text}")

    def _left(self) -> float:
        """Remaining seconds, if a run takes as long as others of its kind, or else as the mean run."""
        took: dict[Any, list[float]] = {}
        for row in self.rows:
            for kind in (_kind(row["settings"]), None):
                took.setdefault(kind, []).append(row["wall_seconds"])
        work = 0.0
        for settings in self.missing:
            like = took.get(_kind(settings), took[None])
            work += sum(like) / len(like)
        at_once = self.spent / (perf_counter() - self.began)  # seconds of work per second
        return work / max(at_once, 0.1)


def _kind(settings: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(settings[name] for name in ("method", "data", "protocol", "at"))


def _time(seconds: float) -> str:
    minutes = round(seconds / 60)
    return (
        f"{minutes // 60} h {minutes % 60} min"
        if minutes >= 60
        else f"{minutes} min"
        if minutes
        else "< 1 min"
    )
