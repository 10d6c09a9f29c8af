"""Blocking clients that are dropped, left open at a program's end, or taken along by a fork."""

import subprocess
import sys
import threading
import time

import pytest

from quorumlog.client.sync import SyncAdmin, SyncConsumer, SyncProducer
from tests.support.client.fake_cluster import PRODUCE, SILENCE, FakeCluster, T

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
def test_what_an_unclosed_producer_holds_is_sent_at_exit(
    brokers: FakeCluster, how: str, status: int
) -> None:
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
