"""Scenario 5 of the bench: brokers are killed under load, on real processes and in virtual time."""

import json
from pathlib import Path
from typing import Any

import pytest

from quorumlog.bench.claims import judge
from quorumlog.bench.documents import document, false_safety_claims
from quorumlog.bench.page import page
from quorumlog.bench.running import Plan, run_scenarios
from quorumlog.bench.scenarios import KILL_CASES
from quorumlog.chaos.workloads import registry
from tests.support.chaos import killed_brokers
from tests.support.chaos.killed_brokers import Seen

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("bench")]
MESSAGES = 2_000
NETWORK = {"NETWORK_EXCEPTION", "NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT"}
SHORT_OF_REPLICAS = {"NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"}
OVERTAKEN = {"OUT_OF_ORDER_SEQUENCE_NUMBER"}  # a batch arrives before the retry of an earlier one
OF_DUPLICATES = {
    "duplicate", "int-poll-skip", "int-nonmonotonic-poll", "int-send-skip", "int-nonmonotonic-send"
}  # fmt: skip
SEEDS = 3


def test_acknowledged_records_survive_killed_brokers(tmp_path: Path) -> None:
    plan = Plan(only=(5,), messages=MESSAGES, modes=("pipelined",), runs=1, down_s=3.0)
    run = run_scenarios(plan, None, lambda *_: None)
    assert false_safety_claims(run) == []
    claims = judge(run.results, 5, [])
    assert {name: one.holds for name, one in claims.items()} == dict.fromkeys(
        ("C5", "C6", "C7", "C8"), True
    )
    by_case = {one.case.name: one for one in run.results.kills}
    assert set(by_case) == {case.name for case in KILL_CASES}
    for one in by_case.values():
        seen = set(one.produced.attempts or ()) | set(one.produced.failed)
        allowed = NETWORK | (SHORT_OF_REPLICAS if one.case.starts_again else set())
        allowed |= OVERTAKEN if one.case.idempotent else set()
        assert seen <= allowed, one.case.name
        assert one.kept.lost == 0
        if one.case.retries:
            assert (one.produced.acknowledged, one.produced.failed) == (MESSAGES, {})
            assert one.kept.stored == MESSAGES + one.kept.duplicates
        if one.case.idempotent or not one.case.retries:
            assert one.kept.duplicates == 0
    written = json.loads(json.dumps(document(run)))
    assert written["scenarios"]["5"]["claims"]["C7"] is True
    assert "brokers" in page(run)


CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("no-retries", 2, {"enable_idempotence": False, "retries": 0}),
    ("retries", 2, {"enable_idempotence": False}),
    ("retries", 3, {"enable_idempotence": False}),
    ("idempotent", 2, {"enable_idempotence": True}),
    ("idempotent", 3, {"enable_idempotence": True}),
]


@pytest.mark.parametrize(("name", "kills", "settings"), CASES)
def test_the_claims_hold_in_virtual_time(
    name: str, kills: int, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = tmp_path / "codes"
    known = {**registry.WORKLOADS, name: killed_brokers.workload(name, codes, **settings)}
    monkeypatch.setattr(registry, "WORKLOADS", known)
    may_duplicate = name == "retries"
    duplicates, all_codes = 0, set[str]()
    for seed in range(SEEDS):
        drawn = killed_brokers.settings_of(
            seed, name, kills=kills, down_s=1 if kills == 2 else 10, after_s=0.2
        )
        seen = killed_brokers.run(drawn, tmp_path / str(seed))
        assert seen.result.violations == (), seed
        assert set(seen.anomalies) <= (OF_DUPLICATES if may_duplicate else set()), seed
        assert continued(seen) if kills == 2 else stopped_and_resumed(seen), seed
        duplicates += seen.anomalies.get("duplicate", 0)
        all_codes |= set(codes.read_text().split())
    if may_duplicate:  # the seeds are fixed: these runs do meet records in flight
        assert duplicates > 0
    assert "NETWORK_EXCEPTION" in all_codes
    assert bool(all_codes & SHORT_OF_REPLICAS) is (kills == 3)
    assert all_codes <= NETWORK | SHORT_OF_REPLICAS | (OVERTAKEN if name == "idempotent" else set())


def continued(seen: Seen) -> bool:
    return any(seen.killed_s < one < seen.started_s for one in seen.acknowledged_s)


def stopped_and_resumed(seen: Seen) -> bool:
    """Return whether no burst ended well from 0.1 s after the kill on, until the start.

    The row of a start follows the first acknowledgements: brokers that start are at work before.
    """
    began_s = seen.started_s - 0.1
    silent = not any(seen.killed_s + 0.1 < one < began_s for one in seen.acknowledged_s)
    return silent and any(one > seen.started_s for one in seen.acknowledged_s)
