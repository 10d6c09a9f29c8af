"""Rules on single requests and replies in the network in memory, and a process without a CPU."""

import asyncio
import struct
from collections.abc import Callable
from typing import Any, Final, cast

import pytest

from quorumlog.chaos.faults.links import DelayRequest, DropReply, DropRequest, Effect, LinkRule
from quorumlog.chaos.faults.registry import STEP_FAULTS, faults_made_of
from quorumlog.chaos.network.splitters import KafkaSplitter, Message
from quorumlog.chaos.node_simulation.loop import START_S, SimulatedLoop
from quorumlog.chaos.node_simulation.machine import KAFKA_PORT, PERIOD_S, PLANES, Starved
from quorumlog.chaos.node_simulation.network import Network
from quorumlog.chaos.node_simulation.process import Clock, Process
from quorumlog.chaos.node_simulation.stream import Stream
from quorumlog.chaos.node_simulation.swarm import KINDS, NOT_DRAWN
from quorumlog.chaos.node_simulation.target import SimulatedMachines

PRODUCE, METADATA = 0, 3
BROKER: Final = "10.0.0.1"


def request(api_key: int, number: int, body: bytes = b"") -> bytes:
    return struct.pack(">ihhi", 8 + len(body), api_key, 9, number) + body


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
            self.transport.write(struct.pack(">ii", 4, number))


class Client(asyncio.Protocol):
    """Notes which requests were answered, and when, and whether the connection was lost."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.answered: list[tuple[int, float]] = []
        self.is_lost = False

    def data_received(self, data: bytes) -> None:
        now_s = round(self.loop.now_s - START_S, 1)
        numbers = [number for _, number in struct.iter_unpack(">ii", data)]
        self.answered += [(number, now_s) for number in numbers]

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


def talk(effect: Effect, *requests: bytes) -> tuple[list[tuple[int, float]], bool]:
    """Send requests under a rule; return what was answered in 10 s, and if the connection ended."""
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
    return client.answered, client.is_lost


def test_a_lost_request_takes_all_that_follows_on_its_connection() -> None:
    sent = [request(METADATA, 1), request(PRODUCE, 2, b"x" * 50), request(METADATA, 3)]
    assert talk(DropRequest("Produce"), *sent) == ([(1, 0.0)], False)
    assert talk(DropRequest("Fetch"), *sent) == ([(1, 0.0), (2, 0.0), (3, 0.0)], False)


def test_a_late_request_holds_back_what_follows() -> None:
    sent = [request(METADATA, 1), request(PRODUCE, 2) + request(METADATA, 3)]
    assert talk(DelayRequest("Produce", 2_000_000), *sent) == (
        [(1, 0.0), (2, 2.0), (3, 2.0)],
        False,
    )


def test_a_lost_reply_resets_its_connection() -> None:
    sent = [request(METADATA, 1), request(PRODUCE, 2), request(METADATA, 3)]
    assert talk(DropReply("Produce"), *sent) == ([(1, 0.0)], True)


def test_a_request_may_come_in_single_bytes() -> None:
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


ON_PROCESSES_ALONE = {
    "wipe_majority": "a control of the run on processes",
}


def test_every_fault_of_simulated_machines_is_in_the_swarm_or_left_out_for_a_reason() -> None:
    can = faults_made_of(SimulatedMachines.operations, SimulatedMachines.effects)
    assert sorted(can) == sorted([*KINDS, *NOT_DRAWN])
    assert sorted(STEP_FAULTS) == sorted([*can, *ON_PROCESSES_ALONE])
