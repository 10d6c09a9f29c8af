"""Rules on requests in memory, a process without a CPU, the disks that a quorum needs."""

import asyncio
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from quorumlog.chaos.faults.links import (
    Answer,
    DelayRequest,
    DropReply,
    DropRequest,
    Effect,
    LinkRule,
)
from quorumlog.chaos.faults.registry import STEP_FAULTS, faults_made_of
from quorumlog.chaos.network.splitters import KafkaSplitter, Message
from quorumlog.chaos.node_simulation.endpoint import Stream
from quorumlog.chaos.node_simulation.loop import START_S, SimulatedLoop
from quorumlog.chaos.node_simulation.machine import KAFKA_PORT, PERIOD_S, PLANES, Starved
from quorumlog.chaos.node_simulation.network import Network
from quorumlog.chaos.node_simulation.process import Clock, Process
from quorumlog.chaos.node_simulation.swarm import KINDS, NOT_DRAWN
from quorumlog.chaos.node_simulation.target import SimulatedMachines
from quorumlog.chaos.node_simulation.voters import SimulatedVoters
from quorumlog.chaos.simulation.worlds.quorum.voter_model import directory_id, voter_of
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.storage.io.checkpoints import uuid_from_text
from tests.support.chaos.kafka_frames import (
    METADATA,
    PRODUCE,
    produce_errors,
    produce_request,
    reply,
    request,
)

BROKER: Final = "10.0.0.1"


class Broker(asyncio.Protocol):
    """Answers each request with its number."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        while len(self.received) >= 12:
            length, *_, number = struct.unpack(">ihhi", self.received[:12])
            if len(self.received) < 4 + length:
                break
            self.received = self.received[4 + length :]
            self.transport.write(reply(number))


class Client(asyncio.Protocol):
    """Notes which requests were answered, and when, and whether the connection was lost."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.answered: list[tuple[int, float]] = []
        self.is_lost = False
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        if len(data) % 8:
            return
        now_s = round(self.loop.now_s - START_S, 1)
        numbers = [number for _, number in struct.iter_unpack(">ii", data)]
        self.answered += [(number, now_s) for number in numbers]

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


def talk(effect: Effect, *requests: bytes) -> tuple[list[tuple[int, float]], bool]:
    """Send requests under a rule; return what was answered in 10 s, and if the connection ended."""
    client = talked(effect, *requests)
    return client.answered, client.is_lost


def talked(effect: Effect, *requests: bytes) -> Client:
    """Send requests under a rule; return the client after 10 s."""
    loop = SimulatedLoop(1)
    network = Network(loop, 1, lambda *_: None, PLANES)
    loop.sockets = network
    network.impose(LinkRule("rule", (), effect), lambda link: link.source != BROKER)

    async def main() -> Client:
        await loop.create_server(Broker, BROKER, KAFKA_PORT)
        transport, client = await loop.create_connection(lambda: Client(loop), BROKER, KAFKA_PORT)
        for one in requests:
            transport.write(one)
            await asyncio.sleep(0.01)
        await asyncio.sleep(10.0)
        return cast(Client, client)

    try:
        client = loop.run_until_complete(loop.spawn(Process("c", "10.0.9.1", Clock()), main))
    finally:
        loop.close()
    return client


def test_an_answer_of_a_rule_has_its_place_among_the_replies() -> None:
    frame = produce_request(2)
    sent = [request(METADATA, 1) + frame[:20], frame[20:] + request(METADATA, 3)]
    received = talked(Answer("Produce", "REQUEST_TIMED_OUT"), *sent).received
    assert (received[:8], received[-8:]) == (reply(1), reply(3))
    assert (received[12:16], produce_errors(received[8:-8])) == (b"\0\0\0\2", [7])


def test_requests_are_lost_or_late_with_those_that_follow() -> None:
    sent = [request(METADATA, 1), request(PRODUCE, 2, b"x" * 50), request(METADATA, 3)]
    assert talk(DropRequest("Produce"), *sent) == ([(1, 0.0)], False)
    assert talk(DropRequest("Fetch"), *sent) == ([(1, 0.0), (2, 0.0), (3, 0.0)], False)
    sent = [request(METADATA, 1), request(PRODUCE, 2) + request(METADATA, 3)]
    assert talk(DelayRequest("Produce", 2_000_000), *sent) == (
        [(1, 0.0), (2, 2.0), (3, 2.0)],
        False,
    )
    sent = [request(METADATA, 1), request(PRODUCE, 2), request(METADATA, 3)]
    assert talk(DropReply("Produce"), *sent) == ([(1, 0.0)], True)
    whole = request(PRODUCE, 2, b"body")
    parts = [whole[place : place + 1] for place in range(len(whole))]
    assert talk(DelayRequest("Produce", 1_000_000), *parts) == ([(2, 1.1)], False)


def test_a_stream_says_how_many_bytes_it_lost() -> None:
    def late_s(message: Message) -> float | None:
        return None if message.number == 2 else 0.0

    stream = Stream(KafkaSplitter(str), late_s)
    first, second = request(METADATA, 1, b"ab"), request(METADATA, 2, b"c")
    assert stream.feed(first[:4]) == []
    assert stream.feed(first[4:] + second[:5]) == [(0.0, first)]
    assert stream.lost_bytes() == 0
    assert stream.feed(second[5:] + b"rest") == []
    assert (stream.lost_bytes(), stream.lost_bytes()) == (len(second) + 4, 0)
    assert stream.rest() == b""


def ticking(share_percent: int, then: Callable[[Starved], object]) -> int:
    """Count how often a process that waits 1 ms each time goes on within 2 s; `then`: after 1 s."""
    loop, process, ticks = SimulatedLoop(1), Process("n", BROKER, Clock()), 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    async def main() -> None:
        task: Any = loop.spawn(process, tick)
        task._log_destroy_pending = False  # it is, when this process ends
        starved = Starved(loop, process, share_percent)
        await asyncio.sleep(1.0)
        then(starved)
        await asyncio.sleep(1.0)

    try:
        loop.run_until_complete(loop.spawn(Process("main", BROKER, Clock()), main))
    finally:
        loop.close()
    return ticks


def test_a_starved_process_runs_for_its_share_until_it_is_fed() -> None:
    starved = ticking(10, lambda _: None)
    assert starved == pytest.approx(0.1 * 2000, abs=50)
    assert ticking(10, Starved.feed) == pytest.approx(starved / 2 + 1000, abs=1000 * PERIOD_S)


ON_PROCESSES_ALONE = {"wipe_majority": "a control of the run on processes"}


def test_every_fault_of_simulated_machines_is_in_the_swarm_or_left_out_for_a_reason() -> None:
    can = faults_made_of(SimulatedMachines.operations, SimulatedMachines.effects)
    assert sorted(can) == sorted([*KINDS, *NOT_DRAWN])
    assert sorted(STEP_FAULTS) == sorted([*can, *ON_PROCESSES_ALONE])


VOTERS: Final = (1, 2, 3)


def machine(node_id: int, *, kraft_version: int, disk: int = 1) -> Any:
    its_id = directory_id(node_id, disk)
    voters = VoterSet(tuple(voter_of(one, directory_id(one, 1)) for one in VOTERS))
    state = SimpleNamespace(kraft_version=kraft_version, voter_set=voters)
    quorum = SimpleNamespace(state=state)
    settings = SimpleNamespace(directory_id=its_id)
    node = SimpleNamespace(quorum=SimpleNamespace(settings=settings, _quorum=quorum))
    return SimpleNamespace(
        node_id=node_id, is_controller=True, disk_faults=SimpleNamespace(fails_below=""), node=node
    )


class Machines:
    """Nodes 1 to 3; all of them vote, with their first disks."""

    def __init__(self, kraft_version: int = 1) -> None:
        self._kraft_version = kraft_version
        self.loop = SimpleNamespace(now_s=100.0)
        self.all = {one: machine(one, kraft_version=kraft_version) for one in VOTERS}
        self.voters = SimulatedVoters(
            self.all,
            "host:1",
            {},
            loop=self.loop,  # type: ignore[arg-type]  # what is needed of one
            told=lambda _, __: None,
        )
        assert self.voters.why_needed({1}) == ""

    def wipe(self, node_id: int) -> None:
        self.all[node_id].node = None
        self.voters.wiped([self.all[node_id]])

    def start(self, node_id: int) -> None:
        self.all[node_id] = machine(node_id, kraft_version=self._kraft_version, disk=2)


def test_no_second_disk_of_three_is_emptied_before_the_first_voter_is_replaced() -> None:
    machines = Machines()
    machines.wipe(1)
    assert machines.voters._directory_of(1) is None
    machines.start(1)
    assert machines.voters._directory_of(1) == uuid_from_text(directory_id(1, 2))
    for other in (2, 3):
        assert "would have their disks" in machines.voters.why_needed({other})
    assert machines.voters.why_needed({1}) == ""  # it has no vote to lose


def test_a_voter_below_kraft_version_1_or_with_another_disk_keeps_its_vote() -> None:
    machines = Machines(kraft_version=0)
    machines.wipe(1)
    machines.start(1)
    assert machines.voters.why_needed({2}) == ""
    machines = Machines()
    machines.all[1].disk_faults.fails_below = "/disk2"
    machines.wipe(1)
    assert machines.voters._directory_of(1) == uuid_from_text(directory_id(1, 1))
    assert machines.voters.why_needed({2}) == ""


def test_no_disk_is_emptied_while_a_change_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = Machines()
    monkeypatch.setattr(machines.voters.changer, "_in_doubt_until_s", 101.0)
    assert machines.voters.why_needed({1}) == "the voters are changing"
    machines.loop.now_s = 101.5
    assert machines.voters.why_needed({1}) == ""
