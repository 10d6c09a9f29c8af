"""A mirror between two clusters: what it copies, and how it goes on after every interruption."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from quorumlog import Admin, LocalCluster, Producer
from quorumlog.client import OffsetAndMetadata, TopicPartition
from quorumlog.mirror import MirrorFenced, MirrorLoop, MirrorRefused, MirrorSettings, TopicsStopped
from quorumlog.mirror.core.mm2_records import checkpoint, offset_sync
from quorumlog.mirror.io.status import read_status
from tests.support.mirrors import (
    TIMEOUT_S,
    Sides,
    copy_once,
    create,
    numbers,
    read,
    running,
    send,
    settings,
    until,
    values_at,
)

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mirror")]
KILLS = 3


@pytest.fixture(scope="module")
def sides() -> Iterator[Sides]:
    with LocalCluster(nodes=1) as source, LocalCluster(nodes=1) as target:
        yield Sides(source.bootstrap, target.bootstrap)


@pytest.mark.parametrize("exactly_once", [False, True])
async def test_every_field_of_a_record_and_every_setting_of_a_topic_is_kept(
    sides: Sides, exactly_once: bool
) -> None:
    topic = f"kept-{exactly_once}".lower()
    await create(sides.source, topic, 3, retention_ms="86400000", min_insync_replicas="1")
    async with Producer(sides.source, transactional_id=topic) as producer:
        await producer.init_transactions()
        async with producer.transaction():
            headers = (("h", b"1"), ("h", None))
            await producer.send(topic, b"a", b"k", partition=2, headers=headers, timestamp_ms=7)
            await producer.send(topic, None, b"k", partition=2)
        producer.begin_transaction()
        await producer.send(topic, b"aborted", partition=2)
        await producer.flush()
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send(topic, b"b", partition=2)
    await copy_once(settings(sides, topic, exactly_once=exactly_once, once=True))
    copy = f"{topic}.{topic}"
    before = await read(sides.source, TopicPartition(topic, 2))
    after = await read(sides.target, TopicPartition(copy, 2))
    assert [one.value for one in after] == [b"a", None, b"b"]
    assert [one[3:7] for one in after] == [one[3:7] for one in before]
    async with Admin(sides.target) as admin:
        assert len((await admin.describe_topics([copy]))[copy].partitions) == 3
        configs = await admin.describe_configs("topic", copy)
    assert configs["retention.ms"].value == "86400000"
    assert configs["min.insync.replicas"].source != 1


async def test_a_group_is_moved_to_the_record_that_it_reads_next(sides: Sides) -> None:
    topic = "moved"
    copy, place = f"{topic}.{topic}", TopicPartition(topic, 0)
    await create(sides.source, topic)
    await create(sides.target, copy)
    await send(sides.target, copy, [b"there before"] * 5)
    async with Producer(sides.source, transactional_id=topic) as producer:
        await producer.init_transactions()
        for value in numbers(0, 20):  # a marker follows each: the offsets have gaps
            async with producer.transaction():
                await producer.send(topic, value, partition=0)
    async with Admin(sides.source) as admin, Admin(sides.target) as target:
        await admin.alter_consumer_group_offsets("g", {place: OffsetAndMetadata(12, metadata="m")})
        await copy_once(settings(sides, topic, groups=("g",), exactly_once=True, once=True))
        moved = await target.list_consumer_group_offsets("g")
        at = moved[TopicPartition(copy, 0)]
        found = await read(sides.target, TopicPartition(copy, 0))
        assert [one.value for one in found if one.offset >= at.offset] == numbers(6, 20)
        assert at.metadata == "m"
        # It only moves forward, and to the end of the copies at most.
        await admin.alter_consumer_group_offsets("g", {place: 3})
        await copy_once(settings(sides, topic, groups=("g",), exactly_once=True, once=True))
        assert await target.list_consumer_group_offsets("g") == moved
        await admin.alter_consumer_group_offsets("g", {place: 40})
        await copy_once(settings(sides, topic, groups=("g",), exactly_once=True, once=True))
        at = (await target.list_consumer_group_offsets("g"))[TopicPartition(copy, 0)]
        assert at.offset == found[-1].offset + 1


async def verify(sides: Sides, *options: str) -> tuple[int | None, dict[str, Any]]:
    """Return the exit status and the document of `mirror verify`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "quorumlog", "mirror", "verify", "--json", "--wait", "60s"),
        *("--from", sides.source, "--to", sides.target, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    out, _ = await process.communicate()
    return process.returncode, json.loads(out)


async def test_both_sides_are_compared_record_by_record(sides: Sides) -> None:
    topic, keyed = "verified", "verified-keys"
    copy = f"{topic}.{topic}"
    options = ("--topic", f"{topic}.*", "--alias", topic, "--exactly-once")
    await create(sides.source, topic, 2)
    await create(sides.source, keyed, cleanup_policy="compact")
    await send(sides.source, topic, numbers(0, 2_000))
    async with Producer(sides.source) as producer:
        await (await producer.send_many(keyed, numbers(0, 50), [b"a", b"b"] * 25, partition=0))
    wanted = settings(sides, f"{topic}.*", alias=topic, exactly_once=True)
    async with running(wanted) as task:
        await until(lambda: copied(sides.target, copy, 2_000), task)
        sending = asyncio.create_task(send(sides.source, topic, numbers(2_000, 4_000)))
        status, document = await verify(sides, *options)  # while it copies
        await sending
        assert (status, document["valid"], document["difference"]) == (0, True, None)
        assert document["topics"][topic]["compared"] >= 2_000
        assert document["topics"][keyed]["compared"] == 2
        await until(lambda: copied(sides.target, copy, 4_000), task)
    async with Admin(sides.source) as admin:
        await admin.delete_records({TopicPartition(topic, 0): 700})
    status, document = await verify(sides, *options)
    [first, empty] = document["topics"][topic]["partitions"].values()
    assert (status, first["compared"], first["removed_at_source"]) == (0, 3_300, 700)
    assert (empty["compared"], empty["difference"]) == (0, None)
    await send(sides.target, copy, [b"by hand"])
    status, document = await verify(sides, *options)
    assert (status, document["valid"], document["difference"]["field"]) == (1, False, "extra")
    status, document = await verify(sides, "--topic", "no-such-topic")
    assert (status, document["valid"], document["topics"]) == (1, False, {})
    assert document["reason"] == "nothing was compared: the source has no such topic"


async def copied(bootstrap: str, topic: str, count: int) -> bool:
    """Return whether the first partition of a copy has so many records."""
    async with Admin(bootstrap) as admin:
        if topic not in await admin.list_topics():
            return False
    return len(await values_at(bootstrap, topic)) >= count


async def test_a_killed_mirror_loses_nothing_and_copies_nothing_twice(sides: Sides) -> None:
    topic = "killed"
    copy = f"{topic}.{topic}"
    await create(sides.source, topic, 2)
    command = [
        sys.executable, "-m", "quorumlog", "mirror", "--from", sides.source, "--to", sides.target,
        "--topic", topic, "--alias", topic, "--exactly-once",
    ]  # fmt: skip
    enough = asyncio.Event()
    sending = asyncio.create_task(trickle(sides.source, topic, enough))
    last = 0
    for _ in range(KILLS):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            before = last
            while last <= before and process.poll() is None:
                await asyncio.sleep(0.05)
                last = await end_of(sides.target, copy)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    enough.set()
    count = await sending
    done = await asyncio.to_thread(
        subprocess.run, [*command, "--once"], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    for partition in range(2):
        assert await values_at(sides.target, copy, partition) == numbers(0, count)
    shown = await asyncio.to_thread(
        subprocess.run,
        [*command[:3], "mirror", "status", *command[4:8], "--alias", topic, "--json"],
        capture_output=True,
        text=True,
    )
    found = json.loads(shown.stdout)
    assert found["lag"] == 0
    assert {one["partition"]: one["position"] for one in found["partitions"]} == {
        0: count,
        1: count,
    }


async def trickle(bootstrap: str, topic: str, enough: asyncio.Event) -> int:
    """Send records to both partitions until there are enough; return the count of one partition."""
    count = 0
    async with Producer(bootstrap) as producer:
        while not enough.is_set():
            for partition in range(2):
                values = numbers(count, count + 100)
                await producer.send_many(topic, values, partition=partition)
            count += 100
            await asyncio.sleep(0.05)
    return count


async def end_of(bootstrap: str, topic: str) -> int:
    async with Admin(bootstrap) as admin:
        if topic not in await admin.list_topics():
            return 0
        place = TopicPartition(topic, 0)
        return (await admin.list_offsets({place: "latest"}))[place].offset


async def test_a_topic_that_was_created_again_stops_or_is_followed(sides: Sides) -> None:
    topic = "again"
    copy = f"{topic}.{topic}"
    await create(sides.source, topic)
    await send(sides.source, topic, numbers(0, 50))
    wanted = settings(sides, topic, exactly_once=True)
    async with running(wanted) as task:
        await until(lambda: has(sides.target, copy, 50), task)
        async with Admin(sides.source) as admin:
            await admin.delete_topics([topic])
        await create(sides.source, topic)
        await send(sides.source, topic, numbers(100, 200))
        with pytest.raises(TopicsStopped, match="again: the topic was deleted and created again"):
            await asyncio.wait_for(asyncio.shield(task), TIMEOUT_S)
    assert await values_at(sides.target, copy) == numbers(0, 50)
    with pytest.raises(TopicsStopped, match="--recreated follow"):
        await copy_once(settings(sides, topic, once=True))
    reports = await copy_once(settings(sides, topic, once=True, on_recreated="follow"))
    assert any("copied from its start" in one.message for one in reports)
    assert await values_at(sides.target, copy) == numbers(0, 50) + numbers(100, 200)


async def has(bootstrap: str, topic: str, count: int) -> bool:
    async with Admin(bootstrap) as admin:
        if topic not in await admin.list_topics():
            return False
    return len(await values_at(bootstrap, topic)) >= count


async def test_a_copy_that_was_deleted_is_not_continued_with_a_hole(sides: Sides) -> None:
    topic = "hole"
    copy = f"{topic}.{topic}"
    await create(sides.source, topic)
    await send(sides.source, topic, numbers(0, 10))
    await copy_once(settings(sides, topic, once=True))
    async with Admin(sides.target) as admin:
        await admin.delete_topics([copy])
    with pytest.raises(TopicsStopped, match="its copy was deleted at the target"):
        await copy_once(settings(sides, topic, once=True))
    await copy_once(settings(sides, topic, once=True, on_recreated="follow"))
    assert await values_at(sides.target, copy) == numbers(0, 10)
    assert not await copy_once(settings(sides, topic, once=True))


async def test_status_counts_every_record_that_has_no_copy(sides: Sides) -> None:
    again, grown, new = "behind-again", "behind-grown", "behind-new"
    for topic in (again, grown):
        await create(sides.source, topic)
        await send(sides.source, topic, numbers(0, 50))
    wanted = settings(sides, "behind-.*", alias="behind", once=True)
    await copy_once(wanted)
    assert await behind(wanted) == {(again, 0): (50, 0), (grown, 0): (50, 0)}
    async with Admin(sides.source) as admin:
        await admin.delete_topics([again])
        await admin.create_partitions({grown: 2})
    await create(sides.source, again)
    await create(sides.source, new)
    await send(sides.source, again, numbers(0, 5))
    await send(sides.source, grown, numbers(0, 6), partition=1)
    await send(sides.source, new, numbers(0, 7))
    found = await behind(wanted)
    assert found == {
        (again, 0): (-1, 5), (grown, 0): (50, 0), (grown, 1): (-1, 6), (new, 0): (-1, 7),
    }  # fmt: skip
    async with Admin(sides.target) as admin:
        await admin.delete_topics([f"behind.{grown}"])
    assert (await behind(wanted))[grown, 0] == (-1, 50)


async def behind(wanted: MirrorSettings) -> dict[tuple[str, int], tuple[int, int]]:
    """Return position and lag of each partition in the status of a mirror."""
    found = (await read_status(wanted)).partitions
    return {(one.topic, one.partition): (one.position, one.lag) for one in found}


async def test_records_that_were_deleted_before_they_were_copied_are_reported(sides: Sides) -> None:
    topic = "deleted"
    copy, place = f"{topic}.{topic}", TopicPartition(topic, 0)
    await create(sides.source, topic)
    await send(sides.source, topic, numbers(0, 10))
    await copy_once(settings(sides, topic, once=True))
    await send(sides.source, topic, numbers(10, 40))
    async with Admin(sides.source) as admin:
        await admin.delete_records({place: 30})
    reports = await copy_once(settings(sides, topic, once=True))
    assert [one.message for one in reports if one.is_loss] == [
        "offsets 10 to 29 were deleted at the source before they were copied (retention, or"
        " deleted records): they are lost; goes on at 30"
    ]
    assert await values_at(sides.target, copy) == numbers(0, 10) + numbers(30, 40)


async def test_the_newer_of_two_mirrors_with_one_alias_ends_the_older(sides: Sides) -> None:
    topic = "fenced"
    copy = f"{topic}.{topic}"
    await create(sides.source, topic)
    await send(sides.source, topic, numbers(0, 10))
    async with running(settings(sides, topic, exactly_once=True)) as older:
        await until(lambda: has(sides.target, copy, 10), older)
        async with running(settings(sides, topic, exactly_once=True)) as newer:
            with pytest.raises(MirrorFenced, match="another mirror with the alias 'fenced'"):
                await asyncio.wait_for(asyncio.shield(older), TIMEOUT_S)
            await send(sides.source, topic, numbers(10, 20))
            await until(lambda: has(sides.target, copy, 20), newer)
            assert await values_at(sides.target, copy) == numbers(0, 20)


async def test_two_mirrors_do_not_send_records_in_circles(sides: Sides) -> None:
    topic = "circle"
    await create(sides.source, topic)
    await send(sides.source, topic, numbers(0, 10))
    await copy_once(settings(sides, topic, once=True, prefix=""))
    with pytest.raises(MirrorLoop, match="circulate"):
        await copy_once(settings(sides.turned(), topic, once=True, prefix=""))
    with pytest.raises(MirrorRefused, match="one cluster"):
        await copy_once(settings(Sides(sides.source, sides.source), topic, prefix=""))
    await copy_once(settings(sides, topic, once=True, alias="east"))
    back = settings(sides.turned(), "east.circle", once=True, alias="west")
    with pytest.raises(MirrorRefused, match="no topic that matches"):
        await copy_once(back)
    async with Admin(sides.source) as admin:
        found = {one for one in await admin.list_topics() if "circle" in one}
    assert found == {"circle"}  # of a refused mirror, and of copies, nothing


async def test_new_topics_and_partitions_are_copied_from_their_start(sides: Sides) -> None:
    await create(sides.source, "grown-a")
    async with running(settings(sides, "grown-.*", alias="grown")) as task:
        await send(sides.source, "grown-a", numbers(0, 10))
        await until(lambda: has(sides.target, "grown.grown-a", 10), task)
        async with Admin(sides.source) as admin:
            await admin.create_partitions({"grown-a": 2})
        await create(sides.source, "grown-b")
        await send(sides.source, "grown-b", numbers(0, 10))
        await send(sides.source, "grown-a", numbers(0, 10), partition=1)
        await until(lambda: has(sides.target, "grown.grown-b", 10), task)

        async def has_second() -> bool:
            async with Admin(sides.target) as admin:
                found = (await admin.describe_topics(["grown.grown-a"]))["grown.grown-a"]
            if len(found.partitions) < 2:
                return False
            return await values_at(sides.target, "grown.grown-a", 1) == numbers(0, 10)

        await until(has_second, task)


@pytest.mark.parametrize("exactly_once", [False, True])
async def test_a_topic_whose_record_is_too_large_stops_alone(
    sides: Sides, exactly_once: bool
) -> None:
    alias = f"large-{exactly_once}".lower()
    small, great, shrunk = (f"{alias}-{name}" for name in ("small", "great", "shrunk"))
    await create(sides.source, small)
    await create(sides.source, great, max_message_bytes="2000000")
    await create(sides.source, shrunk)
    many = [b"%0500d" % number for number in range(500)]
    await send(sides.source, small, many)
    await send(sides.source, shrunk, [*numbers(0, 10), b"x" * 100_000, b"after"])
    async with Producer(sides.source, max_request_size=2_000_000) as producer:
        await producer.send_and_wait(great, b"z" * 1_500_000)
    async with Admin(sides.source) as admin:
        await admin.alter_configs("topic", small, {"max.message.bytes": 10_000})
        await admin.alter_configs("topic", shrunk, {"max.message.bytes": 50_000})
    wanted = settings(sides, f"{alias}-.*", alias=alias, once=True, exactly_once=exactly_once)
    with pytest.raises(TopicsStopped, match=f"{shrunk}: .*MESSAGE_TOO_LARGE"):
        await copy_once(wanted)
    assert await values_at(sides.target, f"{alias}.{small}") == many
    assert len(await values_at(sides.target, f"{alias}.{great}")) == 1
    assert b"after" not in await values_at(sides.target, f"{alias}.{shrunk}")


async def test_the_internal_topics_of_mirrormaker_are_written(sides: Sides) -> None:
    topic = "mm2"
    place, copy = TopicPartition(topic, 0), TopicPartition(f"{topic}.{topic}", 0)
    await create(sides.source, topic)
    await send(sides.source, topic, numbers(0, 10))
    async with Admin(sides.source) as admin:
        await admin.alter_consumer_group_offsets("mm2-group", {place: 4})
    wanted = settings(sides, topic, mm2_compatible=True, target_alias="b", groups=("mm2-group",))
    async with running(wanted) as task:
        await until(lambda: has(sides.target, f"{topic}.heartbeats", 2), task)
        await until(lambda: has(sides.target, f"{topic}.checkpoints.internal", 1), task)
    (written,) = await read(sides.target, TopicPartition(f"{topic}.checkpoints.internal", 0))
    group = OffsetAndMetadata(4)
    assert (written.key, written.value) == checkpoint("mm2-group", copy, 4, group)
    syncs = await read(sides.source, TopicPartition("mm2-offset-syncs.b.internal", 0))
    assert offset_sync(place, 9, 9) in [(one.key, one.value) for one in syncs]
