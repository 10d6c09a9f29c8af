"""Drivers of client libraries: time limits of their calls, and workloads that they cannot run."""

import asyncio
import gc
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import aiokafka
import confluent_kafka
import pytest

from quorumlog.chaos.drivers import aiokafka_driver, client_driver, confluent_driver, registry
from quorumlog.chaos.drivers.aiokafka_driver import AiokafkaDriver
from quorumlog.chaos.drivers.client_driver import ClientDriver
from quorumlog.chaos.drivers.driver import (
    CAPABILITIES,
    AnyDriver,
    CallTimedOut,
    Driver,
    DriverError,
    Membership,
    SendFailed,
)
from quorumlog.chaos.drivers.limits import Limits, limited, within
from quorumlog.chaos.drivers.registry import DRIVERS, DriverUnavailable, check_capable, load_driver
from quorumlog.chaos.drivers.worker import Worker
from quorumlog.chaos.history import HistoryWriter, read_history
from quorumlog.chaos.run.run import run
from quorumlog.chaos.run.run_settings import RunSettings
from quorumlog.chaos.workloads.append_read import AppendRead
from quorumlog.chaos.workloads.registry import WORKLOADS, find_workload
from quorumlog.chaos.workloads.workload import LaneOptions, Setup
from tests.support.chaos.log_in_memory import LogInMemory

SHORT = Limits(
    open_s=0.02, send_s=0.02, poll_s=0.02, call_s=0.02, close_s=0.02, create_topic_s=0.02
)


async def forever(*_: object, **__: object) -> Any:
    await asyncio.Event().wait()


class Hanging:
    """A driver whose calls in `names` never return; the others do nothing."""

    capabilities: frozenset[str] = frozenset({"groups", "offsets", "topics"})

    def __init__(self, *names: str) -> None:
        self.names = names

    def __getattr__(self, name: str) -> Any:
        if name in self.names:
            return forever

        async def call(*_: object, **__: object) -> Any:
            if name in {"producer", "consumer", "member", "offsets", "admin"}:
                return self
            if name == "send":
                return asyncio.get_running_loop().create_future()  # it is never acknowledged
            await asyncio.sleep(0.005)
            return {} if name == "end_offsets" else []

        return call


OPENINGS = {
    "producer": ("b", "p"),
    "consumer": ("b", "c"),
    "member": ("b", "m", Membership(group_id="g")),
    "offsets": ("b", "o"),
    "admin": ("b", "a"),
}
CALLS: dict[tuple[str, str], tuple[object, ...]] = {
    ("consumer", "assign"): ("t", [0]),
    ("consumer", "poll"): (1,),
    ("consumer", "end_offsets"): ("t", [0]),
    ("member", "subscribe"): ("t",),
    ("member", "poll"): (1,),
    ("member", "commit"): ("t", {0: 1}),
    ("member", "committed"): ("t", [0]),
    ("offsets", "ask"): ("t", {0: -1}),
    ("admin", "delete"): ("t",),
    ("admin", "exists"): ("t",),
}


@pytest.mark.parametrize(("client", "call"), sorted(CALLS))
@pytest.mark.jumping_time
async def test_a_call_that_never_returns_ends_at_its_limit(client: str, call: str) -> None:
    driver = limited(cast(Driver, Hanging(call)))
    opened = await getattr(driver, client)(*OPENINGS[client])
    with pytest.raises(CallTimedOut, match=f"NO_ANSWER: {call} did not return within"):
        await getattr(opened, call)(*CALLS[client, call])


@pytest.mark.parametrize("client", sorted(OPENINGS))
@pytest.mark.jumping_time
async def test_a_client_that_never_opens_or_never_closes_is_given_up(client: str) -> None:
    with pytest.raises(ConnectionError, match="NO_ANSWER: open"):
        await getattr(limited(cast(Driver, Hanging(client))), client)(*OPENINGS[client])
    opened = await getattr(limited(cast(Driver, Hanging("close"))), client)(*OPENINGS[client])
    await opened.close()


@pytest.mark.parametrize("client", sorted(OPENINGS))
async def test_a_client_that_fails_to_close_ends_no_run(client: str) -> None:
    class FailsToClose(Hanging):
        async def close(self) -> None:
            raise DriverError("KafkaTimeoutError", "Timeout waiting for future")

    opened = await getattr(limited(cast(Driver, FailsToClose())), client)(*OPENINGS[client])
    await opened.close()


@pytest.mark.jumping_time
async def test_a_send_without_an_answer_is_indefinite() -> None:
    producer = await limited(cast(Driver, Hanging("send"))).producer("b", "p")
    with pytest.raises(SendFailed, match="NO_ANSWER: send") as raised:
        await producer.send("t", 0, b"1")
    assert not raised.value.definite
    producer = await limited(cast(Driver, Hanging())).producer("b", "p")
    with pytest.raises(SendFailed, match="NO_ANSWER: no ack") as raised:
        await (await producer.send("t", 0, b"1"))
    assert not raised.value.definite


async def test_a_failed_delivery_whose_caller_was_cancelled_is_not_reported_as_a_bug() -> None:
    class Fails(Hanging):
        async def send(self, *_: object, **__: object) -> asyncio.Future[int]:
            failed = asyncio.get_running_loop().create_future()
            failed.set_exception(SendFailed("the producer was closed", definite=False))
            return failed

    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what))
    producer = await limited(cast(Driver, Fails())).producer("b", "p")
    delivery = await producer.send("t", 0, b"1")
    delivery.cancel()  # before it has begun to wait
    await asyncio.wait([delivery])
    sending = asyncio.ensure_future(producer.send("t", 0, b"1"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    sending.cancel()  # when the delivery has begun, and before the sender knows it
    await asyncio.wait([sending])
    del delivery, sending
    gc.collect()
    await asyncio.sleep(0)
    assert reported == []


async def test_a_call_that_ignores_its_cancellation_does_not_hold_its_caller() -> None:
    ends = asyncio.Event()

    async def stubborn() -> None:
        while not ends.is_set():
            try:
                await ends.wait()
            except asyncio.CancelledError:
                continue

    with pytest.raises(CallTimedOut):
        await within(0.01, "poll", stubborn())
    ends.set()
    await asyncio.sleep(0)


async def test_a_thread_that_hangs_holds_nobody_and_a_worker_returns_or_raises() -> None:
    worker, ends = Worker("hangs"), threading.Event()
    with pytest.raises(CallTimedOut):
        await within(0.01, "poll", worker.call(ends.wait))
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "hangs")
    assert thread.daemon
    ends.set()
    worker.close()
    thread.join(10)
    assert not thread.is_alive()
    worker = Worker("works")
    assert await worker.call(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await worker.call(lambda: 1 // 0)
    worker.close()


@pytest.mark.jumping_time
@pytest.mark.parametrize("call", ["send", "poll", "assign", "end_offsets", "close", "consumer"])
async def test_a_run_with_a_hanging_driver_ends_and_is_unknown(call: str, tmp_path: Path) -> None:
    with HistoryWriter(tmp_path) as history:
        setup = Setup(
            driver=limited(cast(Driver, Hanging(call)), SHORT),
            bootstrap="b",
            topic="t",
            partitions=1,
            replication_factor=1,
            seed=1,
            options=LaneOptions(producers=1, consumers=1, final_readers=1, rate=1000.0),
            history=history,
        )
        clients = AppendRead(setup)
        working = asyncio.Event()
        working.set()
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            tasks.create_task(clients.work(working))
            await asyncio.sleep(0.1)
            working.clear()
        await clients.final_reads(0.1)
    rows = [row for row in read_history(tmp_path).to_pylist() if row["f"] == call]
    if call in {"send", "poll", "assign"}:
        assert {row["type"] for row in rows} == {"info"}
        assert all("NO_ANSWER" in row["error"] for row in rows)


@dataclass(frozen=True)
class Needs:
    requires: frozenset[str]
    name: str = "w"


def test_capabilities_are_known_and_a_driver_with_limits_keeps_them() -> None:
    for workload in WORKLOADS.values():
        assert workload.requires <= CAPABILITIES.keys()
    every = frozenset[str]().union(*(load_driver(name).capabilities for name in DRIVERS))
    assert every == CAPABILITIES.keys()
    driver = load_driver("client")
    assert limited(driver) is driver


def test_the_settings_of_producers_are_acks_and_idempotence() -> None:
    driver = ClientDriver().with_producers({"acks": "1", "enable.idempotence": "false"})
    assert driver.producing == {"acks": 1, "enable_idempotence": False}
    assert ClientDriver().producing == {}
    assert load_driver("client", producer={"acks": "1"}).capabilities == driver.capabilities
    with pytest.raises(ValueError, match=r"linger\.ms"):
        load_driver("client", producer={"linger.ms": "1"})
    with pytest.raises(ValueError, match="value of acks"):
        load_driver("client", producer={"acks": "2"})


@pytest.mark.parametrize("name", ["aiokafka", "kafka-python", "confluent"])
def test_other_drivers_have_no_settings_of_producers(name: str) -> None:
    pytest.importorskip(name.replace("-python", "").replace("confluent", "confluent_kafka"))
    with pytest.raises(ValueError, match=f"driver {name} has no settings of producers"):
        load_driver(name, producer={"acks": "1"})


def test_an_unable_driver_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def load(name: str, *_: object, **__: object) -> AnyDriver:
        if name == "confluent":
            raise DriverUnavailable(name)
        return load_driver("client") if name == "client" else limited(LogInMemory())

    monkeypatch.setattr(registry, "load_driver", load)
    check_capable("client", Needs(frozenset({"groups"})))
    said = "workload w needs a driver that can groups, and aiokafka cannot; client can"
    with pytest.raises(ValueError, match=said):
        check_capable("aiokafka", Needs(frozenset({"groups"})))
    monkeypatch.setattr("quorumlog.chaos.run.run.load_driver", load)
    (tmp_path / "history.jsonl").write_text("precious")
    settings = RunSettings(out=tmp_path, workload="group_consume", driver="aiokafka")
    with pytest.raises(ValueError, match="workload group_consume needs a driver"):
        run(settings, lambda *_: None)
    assert (tmp_path / "history.jsonl").read_text() == "precious"


@pytest.mark.parametrize("name", sorted(DRIVERS))
def test_what_a_driver_can_do_is_in_the_table_of_the_chapter(name: str) -> None:
    try:
        capabilities = load_driver(name).capabilities
    except DriverUnavailable as error:
        pytest.skip(str(error))
    chapter = Path(__file__).parents[3] / "docs" / "chaos.md"
    (row,) = (line for line in chapter.read_text().splitlines() if line.startswith(f"| `{name}` |"))
    assert {*row.split("|")[3].replace(",", " ").split()} == capabilities
    assert find_workload("append_read").requires <= capabilities


class NeverStarts:
    """Takes the place of every client of the library."""

    made: ClassVar[list["NeverStarts"]] = []

    def __init__(self, **_: Any) -> None:
        self.has_started_to_start = asyncio.Event()
        self.is_closed = False
        self.made.append(self)

    async def start(self) -> None:
        self.has_started_to_start.set()
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self.is_closed = True

    close = stop


@pytest.mark.parametrize("kind", ["producer", "consumer", "offsets", "admin"])
async def test_a_client_that_hangs_is_closed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NeverStarts, "made", [])
    for name in ("AIOKafkaProducer", "AIOKafkaConsumer"):
        monkeypatch.setattr(aiokafka, name, NeverStarts)
    monkeypatch.setattr(aiokafka_driver, "AIOKafkaAdminClient", NeverStarts)
    starting = asyncio.ensure_future(getattr(AiokafkaDriver(), kind)("127.0.0.1:1", "c"))
    await asyncio.sleep(0)
    [client] = NeverStarts.made
    await client.has_started_to_start.wait()
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    assert client.is_closed


@pytest.mark.parametrize("kind", ["producer", "transactions", "consumer"])
async def test_no_client_of_librdkafka_waits_longer_for_a_paused_node_than_our_own(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, object] = {}

    class Client:
        def __init__(self, settings: dict[str, object]) -> None:
            given.update(settings)

        def poll(self, _: float) -> None:
            pass

        def purge(self) -> None:
            pass

        def close(self) -> None:
            pass

    monkeypatch.setattr(confluent_kafka, "Producer", Client)
    monkeypatch.setattr(confluent_kafka, "Consumer", Client)
    driver = load_driver("confluent")
    match kind:
        case "producer":
            await (await driver.producer("h:1", "p")).close()
        case "consumer":
            await (await driver.consumer("h:1", "c")).close()
        case _:
            loop = asyncio.get_running_loop()
            place = {"bootstrap.servers": "h:1"}
            made = confluent_driver._Transactions(place, "p", "t", loop=loop)
            await made.close()
    assert given["socket.timeout.ms"] == client_driver._REQUEST_TIMEOUT_MS
