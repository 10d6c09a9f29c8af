"""Clients without an event loop: interrupted, shared, dropped, left open, taken along by a fork."""

import gc
import inspect
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, get_type_hints

import pytest

from quorumlog.client import (
    Admin,
    Consumer,
    OffsetAndMetadata,
    Producer,
    RebalanceListener,
    TopicPartition,
)
from quorumlog.client.admin.transactions import TransactionAdmin
from quorumlog.client.producer import ManyOptions, SendOptions
from quorumlog.client.settings import ConsumerOptions
from quorumlog.client.sync import SyncAdmin, SyncConsumer, SyncProducer
from quorumlog.client.sync.admin import SyncTransactionAdmin
from tests.support.client.fake_cluster import PRODUCE, SILENCE, FakeCluster, T, fake_cluster
from tests.support.client.fake_group import GroupCluster
from tests.support.client.opened import in_a_thread

OPTIONS: ConsumerOptions = {
    "group_id": "g",
    "auto_offset_reset": "earliest",
    "heartbeat_interval_ms": 10,
    "max_poll_records": 3,
}


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "quorumlog-client"]


def first_values(consumer: SyncConsumer) -> list[bytes | None]:
    while True:
        for records in consumer.poll(1_000).values():
            return [record.value for record in records]


def test_a_fake_cluster_leaves_no_connection_open() -> None:
    for _ in range(30):  # in most of them the broker is killed before it has opened the connection
        with in_a_thread(fake_cluster()) as cluster:
            socket.create_connection(cluster.addresses[1]).close()
    gc.collect()  # a connection that is left is a ResourceWarning, which fails the test


def test_a_commits_callback_runs_in_the_consumers_thread_and_may_call_it(
    group: GroupCluster,
) -> None:
    called: list[tuple[int, object, str]] = []
    with SyncConsumer(group.bootstrap, **OPTIONS) as consumer:
        consumer.subscribe(["t"])
        first_values(consumer)

        def note(offsets: Mapping[TopicPartition, OffsetAndMetadata], error: object) -> None:
            at = consumer.committed([T])[T].offset
            called.append((offsets[T].offset, error, f"{threading.current_thread().name} {at}"))

        consumer.commit({T: 2}, callback=note)
        while not called:
            consumer.poll(10)
        consumer.commit({T: 3}, callback=lambda *_: called.append((3, None, "at the end")))
    name = threading.current_thread().name
    assert called == [(2, None, f"{name} 2"), (3, None, "at the end")]


def test_records_that_were_not_processed_are_not_committed(group: GroupCluster) -> None:
    def fail() -> None:
        with SyncConsumer(group.bootstrap, **OPTIONS) as consumer:
            consumer.subscribe(["t"])
            assert first_values(consumer) == [b"0", b"1", b"2"]
            consumer.poll()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert group.committed == 3  # what the second poll returned is not
    assert threads() == []


def test_iteration_commits_what_was_yielded(group: GroupCluster) -> None:
    with SyncConsumer(group.bootstrap, **OPTIONS) as consumer:
        consumer.subscribe(["t"])
        for record in consumer:
            if record.offset == 4:
                break
    assert group.committed == 5


def test_a_blocking_consumer_pauses_and_tells_what_it_reads(group: GroupCluster) -> None:
    first = TopicPartition("t", 0)
    with SyncConsumer(group.bootstrap, auto_offset_reset="earliest") as consumer:
        assert consumer.partitions_for("t") == [0]
        consumer.assign([first])
        assert consumer.position(first) == 0
        consumer.pause([first])
        assert consumer.poll(1) == {}
        consumer.resume([first])
        assert first_values(consumer)[0] == b"0"
        assert consumer.subscription() == frozenset()
        assert consumer.assignment() == frozenset({first})
        assert consumer.highwater(first) == 0  # as the fake broker answers


def test_what_an_interrupted_poll_took_is_returned_by_the_next(
    group: GroupCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SyncConsumer(group.bootstrap, **OPTIONS) as consumer:
        consumer.subscribe(["t"])
        assert first_values(consumer) == [b"0", b"1", b"2"]
        run = consumer._loop.run

        def interrupted(*arguments: Any, **options: Any) -> None:
            run(*arguments, **options)
            raise KeyboardInterrupt

        monkeypatch.setattr(consumer._loop, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(1_000)
        monkeypatch.undo()
        assert first_values(consumer) == [b"3", b"4", b"5"]
        monkeypatch.setattr(consumer._loop, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(1_000)
        monkeypatch.undo()
    assert group.committed == 6  # nobody has seen 6, 7 and 8


def test_what_an_interrupted_poll_took_is_not_processed(
    group: GroupCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not committed, not before the place of a later seek, not read after another assignment."""
    with SyncConsumer(group.bootstrap, **OPTIONS) as consumer:
        consumer.subscribe(["t"])
        assert first_values(consumer) == [b"0", b"1", b"2"]
        first, run = TopicPartition("t", 0), consumer._loop.run

        def interrupted(*arguments: Any, **options: Any) -> None:
            run(*arguments, **options)
            raise KeyboardInterrupt

        def interrupted_poll() -> None:
            monkeypatch.setattr(consumer._loop, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(1_000)
            monkeypatch.undo()

        interrupted_poll()
        consumer.commit()
        assert group.committed == 3
        interrupted_poll()
        assert consumer.position(first) == 3
        interrupted_poll()
        consumer.seek(first, 8)
        assert first_values(consumer) == [b"8"]
        consumer.seek(first, 0)
        interrupted_poll()
        consumer.unsubscribe()
        assert consumer.poll(1) == {}


def test_a_blocking_call_in_a_listener_is_an_error_and_no_deadlock(group: GroupCluster) -> None:
    errors: list[str] = []

    class Blocks(RebalanceListener):
        async def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            for call in (consumer.commit, consumer.close):
                try:
                    call()
                except RuntimeError as error:
                    errors.append(str(error))

    with SyncConsumer(group.bootstrap, **OPTIONS) as consumer:
        consumer.subscribe(["t"], Blocks())
        assert first_values(consumer) == [b"0", b"1", b"2"]
    assert len(errors) == 2
    assert all("would wait for itself" in error for error in errors)
    assert threads() == []


async def test_threads_share_a_producer_and_a_loop_does_no_harm(brokers: FakeCluster) -> None:
    async def blocking() -> int:
        with SyncProducer(brokers.bootstrap, linger_ms=0) as other:
            return other.send("t", b"loop").result(10).offset

    with SyncProducer(brokers.bootstrap) as producer:
        offsets: list[int] = []

        def send() -> None:
            deliveries = [producer.send("t", b"v") for _ in range(20)]
            offsets.extend(delivery.result(10).offset for delivery in deliveries)

        senders = [threading.Thread(target=send) for _ in range(4)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        assert sorted(offsets) == list(range(80))
        assert await blocking() == 80
    closers = [threading.Thread(target=producer.close) for _ in range(3)]
    for closer in closers:
        closer.start()
        closer.join()
    assert threads() == []


def test_a_client_that_cannot_start_leaves_no_thread() -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        SyncProducer("nowhere")
    assert threads() == []


@pytest.mark.parametrize(
    ("client", "blocking"),
    [
        (Admin, SyncAdmin),
        (Consumer, SyncConsumer),
        (Producer, SyncProducer),
        (TransactionAdmin, SyncTransactionAdmin),
    ],
)
def test_a_blocking_client_has_every_method_of_the_other(client: type, blocking: type) -> None:
    own = {"start", "stop", "send", "send_many", "transaction"}  # with results of their own
    for name, method in inspect.getmembers(client, inspect.isfunction):
        if not name.startswith("_") and name not in own:
            same = getattr(blocking, name)
            assert inspect.signature(same) == inspect.signature(method), name
            assert not inspect.iscoroutinefunction(same), name


def test_a_blocking_client_has_the_parts_and_options_of_the_other() -> None:
    for name, part in inspect.getmembers(Admin, lambda member: isinstance(member, property)):
        if not name.startswith("_"):
            assert isinstance(getattr(SyncAdmin, name), property), part
    for method, options in ((Producer.send, SendOptions), (Producer.send_many, ManyOptions)):
        keywords = {
            name: parameter.annotation
            for name, parameter in inspect.signature(method).parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }
        assert keywords == get_type_hints(options)
    own, other = inspect.signature(SyncProducer.send), inspect.signature(Producer.send)
    assert own.parameters == other.parameters


LEFT_OPEN = """
import sys
from quorumlog.client import TopicPartition
from quorumlog.client.sync import SyncAdmin, SyncConsumer, SyncProducer
producer = SyncProducer(
    sys.argv[1], linger_ms=0, request_timeout_ms=300, delivery_timeout_ms=int(sys.argv[2])
)
admin = SyncAdmin(sys.argv[1])
consumer = SyncConsumer(sys.argv[1])
consumer.assign([TopicPartition("t", 0)])
for number in range(3):
    producer.send("t", b"%d" % number)
if sys.argv[3] == "raise":
    raise ZeroDivisionError
"""
FORKED = """
import os, sys
from quorumlog.client.sync import SyncProducer
producer = SyncProducer(sys.argv[1])
SyncProducer(sys.argv[1], linger_ms=60_000).send("t", b"dropped")  # closed in the background
child = os.fork()
if not child:
    try:
        producer.send("t", b"child")
    except RuntimeError as error:
        print(error, flush=True)
    producer.close()
    with SyncProducer(sys.argv[1]) as own:
        own.send("t", b"own").result(10)
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
producer.send("t", b"parent")
producer.close()
"""


def run(program: str, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "default::ResourceWarning", "-c", program, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == status, ended
    return ended


@pytest.mark.parametrize(("how", "status"), [("end", 0), ("raise", 1)])
def test_an_unclosed_producer_sends_at_exit(brokers: FakeCluster, how: str, status: int) -> None:
    ended = run(LEFT_OPEN, brokers.bootstrap, "20000", how, status=status)
    assert brokers.values() == [b"0", b"1", b"2"]
    for kind in ("SyncProducer", "SyncConsumer", "SyncAdmin"):
        assert f"ResourceWarning: unclosed {kind}: use `with`, or close()" in ended.stderr


def test_a_program_ends_although_no_broker_answers(brokers: FakeCluster) -> None:
    brokers.fault = lambda _, api: SILENCE if api == PRODUCE else None
    run(LEFT_OPEN, brokers.bootstrap, "400", "end")


def test_a_forked_child_is_told_and_may_open_its_own(brokers: FakeCluster) -> None:
    ended = run(FORKED, brokers.bootstrap)
    assert ended.stdout == "this client was opened before a fork: open one in this process\n"
    assert sorted(brokers.values()) == [b"dropped", b"own", b"parent"]


def test_a_dropped_client_is_closed_in_the_background(brokers: FakeCluster) -> None:
    def forget() -> None:
        SyncProducer(brokers.bootstrap, linger_ms=60_000).send("t", b"kept")

    with pytest.warns(ResourceWarning, match="unclosed SyncProducer"):
        forget()
    with SyncConsumer(brokers.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([T])
        while not (records := consumer.poll(1_000)):
            pass
        assert [record.value for record in records[T]] == [b"kept"]
    with pytest.warns(ResourceWarning, match="unclosed SyncAdmin"):
        SyncAdmin(brokers.bootstrap)
    while "quorumlog-client" in {thread.name for thread in threading.enumerate()}:
        time.sleep(0.001)
