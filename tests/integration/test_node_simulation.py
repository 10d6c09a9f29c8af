"""Whole nodes in simulation: a run is a function of its seed, and the nodes keep what they say."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.integration


def simulated(*options: str, hash_seed: str = "0") -> dict[str, Any]:
    """Run the command in a process of its own."""
    command = [sys.executable, "-m", "quorumlog", "simulate", "nodes", *options, "--json"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert done.stdout, done.stderr.decode()
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_a_calm_run_is_valid_and_costs_no_real_time() -> None:
    document = simulated("--seed", "1", "--duration", "10s", "--faults", "none")
    assert document["valid"] is True
    assert document["virtual_s"] > 10
    assert document["operations"] > 300


def test_the_same_seed_gives_the_same_run_in_any_process_and_with_any_hash_seed() -> None:
    options = ("--seed", "3", "--duration", "8s")
    first, second = (simulated(*options, hash_seed=seed) for seed in ("1", "77"))
    assert first["digest"] == second["digest"]
    assert first["faults"]
    assert first["operations"] == second["operations"]
    other = simulated("--seed", "4", "--duration", "8s")
    assert other["digest"] != first["digest"]
