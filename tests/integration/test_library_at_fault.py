"""A run whose library drops an error: INVALID, and the verdict names the library."""

import json
from pathlib import Path
from typing import Any

import pytest

from quorumlog.chaos.checkers import Verdict
from quorumlog.chaos.drivers.aiokafka_checks import CoordinatorChecks
from quorumlog.chaos.run.run import run
from quorumlog.chaos.run.run_settings import RunSettings
from quorumlog.chaos.schedule import Schedule
from quorumlog.chaos.verify import verify_history

pytestmark = pytest.mark.integration

RESTARTS = {
    "format": 2,
    "seed": 3,
    "duration_us": 9_000_000,
    "actions": [
        {"t_us": t_us, "duration_us": 300_000, "fault": "restart", "target": "group-coordinator"}
        for t_us in (500_000, 4_500_000)
    ],
}


def judged(out: Path) -> Verdict:
    settings = RunSettings(
        out=out,
        workload="consume_transform_produce",
        options={"workers": 6, "zombies": 0, "crashes": 0, "rate": 8, "aborts": 0.6},
        driver="aiokafka",
        duration_s=9.0,
        schedule=Schedule.from_json(json.dumps(RESTARTS)),
        config={"offsets.topic.num.partitions": "1"},
        partitions=6,
        record_responses=True,
    )
    run(settings, lambda *_: None)
    return verify_history(out, engine="local")


def test_a_library_that_drops_an_error_accuses_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiokafka 0.14 as it is: a stale coordinator's refusal reads as "nothing is committed".

    A run may be without such a refusal where something is committed: on a busy machine workers
    join late.
    """

    def unchecked(checks: Any, response: Any) -> None:
        del checks, response

    monkeypatch.setattr(CoordinatorChecks, "_check_fetched", unchecked)
    runs = (tmp_path / f"run-{number}" for number in range(4))
    verdict = next((one for one in map(judged, runs) if one.valid is False), None)
    assert verdict is not None, "no run has the refusal"
    found = {result.name: result for result in verdict.results}
    assert "offset-lost" in found
    for witness in found["offset-lost"].witnesses:
        [answer] = [op for op in witness["ops"] if op["role"] == "answer"]
        said = f"process {answer['process']} recorded no committed offset of {witness['key']}"
        assert any(text.startswith(said) for text in witness["library_doubts"])
        assert any(one["error"] == "NOT_COORDINATOR" for one in witness["responses"])
