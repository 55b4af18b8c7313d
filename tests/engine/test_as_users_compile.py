"""The vectorized engine as users compile it. All other tests compile without optimisations: see conftest.py.

Here some of those tests run again, in a process of their own: every likelihood, batches and single entries,
curvature, attributes, noise per node, a network of one's own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="needs the extra: pip install spidertensor[jax]")

HERE = Path(__file__).parent
AGAIN = (
    "test_vectorized.py::test_entry_by_entry_equals_the_oracle[(3,2)-(7,)-tanh-gaussian-curved-b0m0clip]",
    "test_vectorized.py::test_calls_of_single_entries_equal_the_oracle[(2,5)-(7,16,50)-relu-probit-flat-b1m2]",
    "test_vectorized.py::test_joint_is_bayesian_linear_regression[weights]",
    "test_counts_engines.py::test_the_vectorized_engine_equals_the_oracle[2-cuts0]",
    "test_vectorized_robust.py::test_follows_as_the_oracle_does[memory-scale]",
    "test_vectorized.py::test_how_calls_are_cut_does_not_matter_to_batches_of_one[gaussian-settings2]",
    "test_vectorized_bags.py::test_float32_equals_the_sequential_engine[(3,2)-(7,)-relu-gaussian-flat-b1m3-tables3]",
    "test_engines.py::test_a_network_of_ones_own_learns_saves_and_goes_on[SpiderRegressor]",
)


@pytest.mark.slow
def test_again(as_users_compile):
    tests = [str(HERE / name) for name in AGAIN]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *tests],
        env=as_users_compile, capture_output=True, text=True, check=False, cwd=HERE.parents[1],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1]
