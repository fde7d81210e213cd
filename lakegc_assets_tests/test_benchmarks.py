"""The largest benchmark still runs: its simulated lakeFS answers all requests of the collector."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.conformance
def test_the_scale_of_the_design_is_measured_to_its_end(tmp_path: Path) -> None:
    few = ("--objects", "100000", "--ranges", "4", "--commits", "100", "--branches", "4")
    done = subprocess.run(
        [sys.executable, "-m", "bench.seed_scale", *few, "--engine", "embedded"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert "clean: 100,000 keys listed, 0 carried forward" in done.stdout
    assert "sweep: 5,000 objects" in done.stdout
    assert "optimized: 10,000 keys listed, 100,000 carried forward" in done.stdout
