"""Automatic balance: which leaderships go back to preferred replicas, and in which slices."""

from dataclasses import replace
from typing import Any

import pytest

from quorumlog.metadata_quorum.controller import leader_balance
from quorumlog.metadata_quorum.controller_client import NewTopic
from tests.support.metadata_quorum.controllers import SETTINGS, Bench, ids

INTERVAL_MS = SETTINGS.leader_imbalance_check_interval_seconds * 1000


def away(**settings: Any) -> Bench:
    """Broker 1 was away, and is back in the ISR of t-0 alone; it is preferred for t-0 and u-0."""
    bench = Bench(settings=replace(SETTINGS, **settings))
    bench.start(1, 2)
    for name in ("t", "u"):
        bench.create(NewTopic(name=name, assignments={0: ids(1, 2), 1: ids(2, 1)}))
    bench.die(1)
    bench.revive(1)
    bench.join_isr(1)
    assert bench.partition().leader_id == bench.partition("u").leader_id == 2
    return bench


def balance(bench: Bench, slices: int) -> None:
    due_ms = bench.controller.next_balance_ms()
    assert due_ms is not None
    bench.now_ms = max(bench.now_ms, due_ms)
    for _ in range(slices):
        bench.carry_out(bench.controller.decide_balance(bench.now_ms))


def test_a_preferred_replica_in_sync_leads_again_and_no_other() -> None:
    bench = away()
    assert bench.controller.next_balance_ms() == 1000 + INTERVAL_MS
    balance(bench, 2)
    assert bench.partition().leader_id == 1
    assert bench.partition("u").leader_id == 2
    assert bench.controller.next_balance_ms() == bench.now_ms + INTERVAL_MS


def test_a_small_imbalance_stays() -> None:
    bench = away(leader_imbalance_per_broker_percentage=100)
    balance(bench, 1)
    assert bench.partition().leader_id == 2
    assert bench.controller.next_balance_ms() == bench.now_ms + INTERVAL_MS


def test_a_look_goes_on_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_balance, "LOOKED_AT_AT_ONCE", 1)
    bench = away()
    balance(bench, 4)
    assert bench.partition().leader_id == 2
    assert bench.controller.next_balance_ms() <= bench.now_ms  # type: ignore[operator]  # it is on
    balance(bench, 2)
    assert bench.partition().leader_id == 1


def test_it_can_be_switched_off() -> None:
    assert away(auto_leader_rebalance_enable=False).controller.next_balance_ms() is None
