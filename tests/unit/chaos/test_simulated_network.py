"""The network in memory calls a protocol as sockets do; the loop runs in an order of the seed."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any, Final

import pytest

from quorumlog.chaos.faults.links import Cut, LinkRule
from quorumlog.chaos.node_simulation.loop import START_S, SimulatedLoop
from quorumlog.chaos.node_simulation.network import Network
from quorumlog.chaos.node_simulation.process import OWNER, Clock, Process

MANY: Final = bytes(12_000_000)


class Recorder(asyncio.Protocol):
    """Notes each callback; `answers` say what to do then."""

    def __init__(self, **answers: Callable[["Recorder"], object]) -> None:
        self.calls: list[str] = []
        self.received = b""
        self.answers = answers
        self.transport: Any = None
        self.lost = asyncio.get_running_loop().create_future()

    def note(self, call: str, name: str) -> Any:
        self.calls.append(call)
        return self.answers[name](self) if name in self.answers else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.note("made", "made")

    def data_received(self, data: bytes) -> None:
        if not self.received:
            self.calls.append("data")
        self.received += data
        if "data" in self.answers:
            self.answers["data"](self)

    def eof_received(self) -> bool | None:
        keeps_open: bool | None = self.note("eof", "eof")
        return keeps_open

    def pause_writing(self) -> None:
        self.note("pause", "pause")

    def resume_writing(self) -> None:
        self.note("resume", "resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.note(f"lost {type(exc).__name__}", "lost")
        self.lost.set_result(None)


Script = Callable[[Recorder, Recorder], Awaitable[None]]


async def ended(*recorders: Recorder) -> None:
    for recorder in recorders:
        await recorder.lost


async def client_says_and_closes(client: Recorder, server: Recorder) -> None:
    client.transport.write(b"hello")
    client.transport.writelines([b" ", b"world"])
    client.transport.close()
    await ended(client, server)


async def client_half_closes(client: Recorder, server: Recorder) -> None:
    def answer(it: Recorder) -> bool:
        it.transport.write(b"answer")
        it.transport.close()
        return True

    server.answers["eof"] = answer
    client.transport.write(b"question")
    client.transport.write_eof()
    await ended(client, server)


async def client_aborts(client: Recorder, server: Recorder) -> None:
    client.transport.write(b"hello")
    client.transport.abort()
    await ended(client, server)


async def server_closes_with_unread_bytes(client: Recorder, server: Recorder) -> None:
    server.transport.pause_reading()
    client.transport.write(b"never read")
    await asyncio.sleep(0.005)
    server.transport.close()
    await ended(client, server)


async def server_fails_in_a_callback(client: Recorder, server: Recorder) -> None:
    def fail(_: Recorder) -> None:
        raise ZeroDivisionError

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    server.answers["data"] = fail
    client.transport.write(b"hello")
    await ended(client, server)


async def server_reads_late(client: Recorder, server: Recorder) -> None:
    server.transport.pause_reading()
    client.transport.write(MANY)
    await asyncio.sleep(0.005)
    assert client.calls == ["made", "pause"]
    server.transport.resume_reading()
    while len(server.received) < len(MANY):
        await asyncio.sleep(0.001)
    client.transport.close()
    await ended(client, server)


async def both_talk(client: Recorder, server: Recorder) -> None:
    def answer(it: Recorder) -> None:
        if it.received == b"ping":
            it.transport.write(b"pong")

    server.answers["data"] = answer
    client.answers["data"] = lambda it: it.transport.close() if it.received == b"pong" else None
    client.transport.write(b"ping")
    await ended(client, server)


SCRIPTS: Final[list[Script]] = [
    client_says_and_closes,
    client_half_closes,
    client_aborts,
    server_closes_with_unread_bytes,
    server_fails_in_a_callback,
    server_reads_late,
    both_talk,
]


async def play(script: Script, host: str) -> tuple[list[str], bytes, list[str], bytes]:
    """Return what client and server saw."""
    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[Recorder] = loop.create_future()

    def accept() -> Recorder:
        return Recorder(made=accepted.set_result)

    listener = await loop.create_server(accept, host, 0)
    port = listener.sockets[0].getsockname()[1]
    _, client = await loop.create_connection(Recorder, host, port)
    server = await accepted
    await script(client, server)
    listener.close()
    return client.calls, client.received, server.calls, server.received


class Simulated:
    """A loop with a network, and what runs in it."""

    def __init__(self, seed: int = 1) -> None:
        self.loop = SimulatedLoop(seed)
        self.network = Network(self.loop, seed, lambda *_: None)
        self.loop.sockets = self.network

    def process(self, host: str = "10.0.0.1") -> Process:
        return Process(host, host, Clock())

    def run(self, main: Callable[[], Any], process: Process | None = None) -> Any:
        try:
            return self.loop.run_until_complete(self.loop.spawn(process or self.process(), main))
        finally:
            self.loop.close()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_the_same_callbacks_come_on_real_sockets_and_in_memory(script: Script) -> None:
    real = asyncio.run(play(script, "127.0.0.1"))
    assert Simulated().run(lambda: play(script, "10.0.0.1")) == real


def test_a_port_without_a_listener_refuses() -> None:
    async def connect() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Recorder, "10.0.0.9", 9)

    Simulated().run(connect)


def test_a_cut_of_one_direction_holds_bytes_back_until_it_is_healed() -> None:
    simulated = Simulated()
    loop, network = simulated.loop, simulated.network

    async def main() -> tuple[float, float]:
        async def held(client: Recorder, server: Recorder) -> None:
            network.impose(LinkRule("cut", (), Cut()), lambda link: True)
            client.transport.write(b"late")
            await asyncio.sleep(3.0)
            assert server.received == b""
            network.lift("cut")
            client.transport.close()
            await ended(client, server)
            assert server.received == b"late"

        started_s = loop.now_s
        await play(held, "10.0.0.1")
        return started_s, loop.now_s

    started_s, ended_s = simulated.run(main)
    assert 3.0 < ended_s - started_s < 3.5


async def one_pair(simulated: Simulated, process: Process) -> tuple[Recorder, Recorder]:
    """Let `process` listen, and connect to it from here."""
    loop, accepted = simulated.loop, simulated.loop.create_future()

    async def listen() -> None:
        await loop.create_server(lambda: Recorder(made=accepted.set_result), process.host, 9092)

    await loop.spawn(process, listen)
    _, client = await loop.create_connection(Recorder, process.host, 9092)
    return client, await accepted


def test_a_killed_process_closes_its_connections_and_runs_no_callback() -> None:
    simulated, victim = Simulated(), Process("n", "10.0.0.2", Clock())

    async def main() -> None:
        client, server = await one_pair(simulated, victim)
        simulated.loop.kill(victim)
        simulated.network.process_died(victim)
        await client.lost
        assert client.calls == ["made", "eof", "lost NoneType"]
        assert server.calls == ["made"]
        with pytest.raises(ConnectionRefusedError):
            await simulated.loop.create_connection(Recorder, victim.host, 9092)

    simulated.run(main)


def test_a_machine_without_power_is_silent_and_resets_once_it_is_back() -> None:
    simulated, victim = Simulated(), Process("n", "10.0.0.2", Clock())

    async def main() -> None:
        client, server = await one_pair(simulated, victim)
        simulated.loop.kill(victim)
        simulated.network.power_lost(victim.host, victim)
        client.transport.write(b"into the dark")
        await asyncio.sleep(60.0)
        assert client.calls == ["made"]
        simulated.network.power_restored(victim.host, victim)
        await client.lost
        assert client.calls == ["made", "lost ConnectionResetError"]
        assert server.calls == ["made"]

    simulated.run(main)


def test_a_paused_process_does_later_what_was_due() -> None:
    simulated, victim = Simulated(), Process("n", "10.0.0.2", Clock())
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(1.0)
            ticks.append(simulated.loop.now_s - START_S)

    async def main() -> None:
        task: Any = simulated.loop.spawn(victim, tick)
        task._log_destroy_pending = False  # it is, when this process ends
        await asyncio.sleep(2.5)
        victim.is_paused = True
        await asyncio.sleep(5.0)
        victim.is_paused = False
        simulated.loop.wake(victim)
        await asyncio.sleep(0.5)
        simulated.loop.kill(victim)
        await asyncio.sleep(5.0)

    simulated.run(main)
    assert ticks == [1.0, 2.0, 7.5]


def test_a_killed_task_runs_no_finally() -> None:
    simulated, victim = Simulated(), Process("n", "10.0.0.2", Clock())
    ran: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(10.0)
        finally:
            ran.append("finally")

    async def main() -> None:
        task: Any = simulated.loop.spawn(victim, work)
        task._log_destroy_pending = False  # it is, when this process ends
        await asyncio.sleep(1.0)
        simulated.loop.kill(victim)
        await asyncio.sleep(100.0)
        assert ran == []

    simulated.run(main)


def test_each_process_has_its_own_clock() -> None:
    simulated = Simulated()
    fast = Process("n", "10.0.0.2", Clock())
    seen: list[float] = []

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await asyncio.sleep(2.0)
        seen.extend((loop.time() - began_s, simulated.loop.now_s - START_S))

    async def main() -> None:
        fast.clock.set_rate(2.0, simulated.loop.now_s)
        await simulated.loop.spawn(fast, wait)
        assert OWNER.get() is not fast

    simulated.run(main)
    assert seen == [pytest.approx(2.0), pytest.approx(1.0)]


def test_threads_of_a_pool_begin_in_their_order() -> None:
    simulated = Simulated()
    began: list[int] = []

    class Pool:
        _max_workers = 1

    async def main() -> list[int]:
        pool: Any = Pool()
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(pool, began.append, n) for n in range(20)))
        return [await asyncio.to_thread(lambda: 7)]

    assert simulated.run(main) == [7]
    assert began == [*range(20)]


TASKS: Final = 30


def cancelled_in_a_group(*, disorder: int) -> list[int]:
    """Return the tasks of a TaskGroup in the order in which they hear that it ends."""
    loop, heard, rng = SimulatedLoop(0), list[int](), Random(disorder)
    between: list[object] = []  # the tasks, so that their addresses have no order

    async def wait(number: int) -> None:
        try:
            await asyncio.sleep(1)
        finally:
            heard.append(number)

    async def main() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5), asyncio.TaskGroup() as tasks:
                for number in range(TASKS):
                    between.append([object() for _ in range(rng.randrange(50))])
                    between.append([asyncio.Event() for _ in range(rng.randrange(50))])
                    tasks.create_task(wait(number))

    loop.run_until_complete(loop.spawn(Process("test", "10.0.0.1", Clock()), main))
    loop.close()
    return heard


def test_a_group_cancels_its_tasks_in_an_order_that_follows_from_the_seed() -> None:
    orders = [cancelled_in_a_group(disorder=disorder) for disorder in range(4)]
    assert sorted(orders[0]) == [*range(TASKS)]
    assert orders == [orders[0]] * 4
