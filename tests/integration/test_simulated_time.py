"""Days pass in whole nodes in simulation: what has expired goes, and no session ends."""

import asyncio

import pytest

from quorumlog.advances import Advance
from quorumlog.chaos.node_simulation.machine import Machine
from quorumlog.chaos.node_simulation.run import SimulatedRun
from quorumlog.chaos.node_simulation.simulate import simulate_nodes

pytestmark = pytest.mark.integration
DAY_MS = 86_400_000


def leaderships(machine: Machine) -> dict[str, tuple[int, ...]]:
    """Return leader, leader epoch and ISR of each partition, and the sessions of the brokers."""
    assert machine.node is not None
    image = machine.node.quorum.image
    led: dict[str, tuple[int, ...]] = {
        f"{name}-{index}": (partition.leader_id, partition.leader_epoch, *sorted(partition.isr))
        for name, topic in image.topics.items()
        for index, partition in enumerate(topic.partitions)
    }
    fenced = [broker_id for broker_id, broker in image.brokers.items() if broker.fenced]
    return {
        **led,
        "fenced": (*fenced,),
        "quorum": (int(str(machine.node.quorum.describe()["leader_epoch"])),),
    }


def starts(machine: Machine) -> dict[str, int]:
    """Return the start offsets of the logs of the workload's topics."""
    assert machine.node is not None
    assert machine.node.broker is not None
    drivers = machine.node.broker.replicas.drivers
    return {
        str(at): int(driver.log.log_start_offset)
        for at, driver in drivers.items()
        if not at.topic.startswith("__")
    }


async def pass_days(run: SimulatedRun, days: int) -> None:
    """Advance the clocks of all machines, and give the nodes 10 s."""
    now_ms = run._loop.machine_clock_ms()
    for machine in run._machines.values():
        machine.advance((Advance(now_ms, days * DAY_MS),))
    await asyncio.sleep(10)
    for machine in run._machines.values():
        assert machine.process is not None
        assert machine.process.advances.ahead_ms == days * DAY_MS


def ending_with_days(monkeypatch: pytest.MonkeyPatch, days: int, *, expires: bool) -> None:
    """Let each run pass days behind its faults, and violate a rule unless they show."""
    until_whole = SimulatedRun._until_whole

    async def and_days(run: SimulatedRun) -> None:
        await until_whole(run)
        machines = run._machines.values()
        before = [leaderships(machine) for machine in machines]
        await pass_days(run, days)
        if [leaderships(machine) for machine in machines] != before:
            run._violated("days have moved a leader")
        begun = [any(starts(machine).values()) for machine in machines]
        if begun != [expires] * len(begun):
            run._violated(f"logs that begin behind 0: {begun}")

    monkeypatch.setattr(SimulatedRun, "_until_whole", and_days)


def test_six_days_expire_nothing_and_disturb_no_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    ending_with_days(monkeypatch, 6, expires=False)
    result = simulate_nodes(1, duration_ms=2_000, faults=("kill", "pause"))
    assert (result.valid, result.violations, result.anomalies) == (True, (), ())


@pytest.mark.parametrize("days", [8, 365])
def test_more_than_a_week_expires_the_records_of_a_week_and_moves_no_leader(
    monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    ending_with_days(monkeypatch, days, expires=True)
    result = simulate_nodes(1, duration_ms=2_000, faults=())
    assert not [one for one in result.violations if "days" in one or "begin behind" in one]
