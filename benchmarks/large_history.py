"""Memory and disk of `spider fit` with several passes over a large file: a JSON line for each number of rows.

    python benchmarks/large_history.py 2000000 20000000 --passes 2 --committee 1

A Parquet file of ratings at random pairs of 500,000 users and 50,000 movies is written block by block, and
learned by a process of its own. `peak_rss` is that process's; `peak_disk` is what its files without a name
take, looked at every half second (Linux only).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

USERS, MOVIES = 500_000, 50_000
BLOCK_ROWS = 2**18
MIB = 2**20


def write(path: Path, n: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    users, movies = (0.5 * rng.normal(size=each) for each in (USERS, MOVIES))
    schema = pa.schema([("user", pa.int32()), ("movie", pa.int32()), ("rating", pa.float32())])
    with pq.ParquetWriter(path, schema) as file:
        for first in range(0, n, BLOCK_ROWS):
            size = min(BLOCK_ROWS, n - first)
            user, movie = (rng.integers(each, size=size, dtype=np.int32) for each in (USERS, MOVIES))
            rating = 3 + users[user] + movies[movie] + 0.8 * rng.normal(size=size)
            file.write_table(pa.table([user, movie, rating.astype(np.float32)], schema=schema))


def disk(pid: int) -> int:
    """Bytes of the files without a name that a process has open."""
    total = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(each).endswith("(deleted)"):
                total += os.stat(each).st_blocks * 512
        except OSError:  # closed meanwhile
            continue
    return total


def measured(folder: Path, n: int, options: list[str]) -> dict[str, object]:
    source, model = folder / f"{n}.parquet", folder / f"{n}.spider"
    write(source, n)
    command = [sys.executable, "-m", "spidertensor", "fit", str(source), "--modes", "user,movie"]
    command += ["--value", "rating", "--model", str(model), "--json", "--quiet", *options]
    began, peak, printed = time.perf_counter(), 0, folder / "summary"
    with printed.open("w") as out:
        running = subprocess.Popen(command, stdout=out)
    while not (ended := os.wait4(running.pid, os.WNOHANG))[0]:
        peak = max(peak, disk(running.pid))
        time.sleep(0.5)
    summary, used = json.loads(printed.read_text()), ended[2]
    return {
        "rows": n,
        "file_mib": round(source.stat().st_size / MIB),
        "model_mib": round(model.stat().st_size / MIB),
        "peak_rss_mib": round(used.ru_maxrss / 1024),
        "peak_disk_mib": round(peak / MIB),
        "seconds": round(time.perf_counter() - began),
        "cpu_seconds": round(used.ru_utime + used.ru_stime),
        "errors": summary["history"]["errors"],
        "sites": summary["history"]["sites"],
        "options": options,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rows", nargs="+", type=int, help="how many")
    given, options = parser.parse_known_args()
    for n in given.rows:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            sys.stdout.write(json.dumps(measured(Path(folder), n, options)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
