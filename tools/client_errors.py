"""Answers requests of installed clients with errors, and writes the table of the effects.

    python -m tools.client_errors [CLIENT ...]      default: all installed drivers of the lab

Each case has a topic of its own on a cluster of three nodes: a rule answers three requests with an
error while the client sends, reads, reads in a group, or commits a transaction. The topic is then
read by quorumlog's client. The table is in docs/client-errors.md.
"""

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console

from quorumlog import Admin, Consumer
from quorumlog.chaos.back_ends.run_resources import Equipment, started
from quorumlog.chaos.control.manual_nemesis import ManualNemesis
from quorumlog.chaos.drivers.driver import DriverError, Membership, SendFailed
from quorumlog.chaos.drivers.registry import DRIVERS, DriverUnavailable, load_driver
from quorumlog.client import NewTopic, TopicPartition
from quorumlog.cluster import LocalCluster

PAGE: Final = Path(__file__).parent.parent / "docs/client-errors.md"
CONSOLE: Final = Console(stderr=True, soft_wrap=True)
BEGIN: Final = "| request | error | after |"
RECORDS: Final = 20
TIMES: Final = 3
_TIMEOUT_S: Final = 25.0

Names = tuple[str, ...]
_LEADER: Final = (
    "NOT_LEADER_OR_FOLLOWER", "UNKNOWN_TOPIC_OR_PARTITION", "LEADER_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "KAFKA_STORAGE_ERROR",
    "UNKNOWN_TOPIC_ID",
)  # fmt: skip
_COORDINATOR: Final = (
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
)
CASES: Final[Mapping[str, Names]] = {
    "Produce": (
        *_LEADER, "CORRUPT_MESSAGE", "REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "NETWORK_EXCEPTION",
    ),
    "InitProducerId": (*_COORDINATOR, "CONCURRENT_TRANSACTIONS"),
    "Metadata": ("LEADER_NOT_AVAILABLE", "UNKNOWN_TOPIC_OR_PARTITION"),
    "Fetch": (
        *_LEADER, "OFFSET_NOT_AVAILABLE", "FETCH_SESSION_ID_NOT_FOUND",
        "INVALID_FETCH_SESSION_EPOCH", "INCONSISTENT_TOPIC_ID",
    ),
    "ListOffsets": ("NOT_LEADER_OR_FOLLOWER", "OFFSET_NOT_AVAILABLE"),
    "FindCoordinator": ("COORDINATOR_NOT_AVAILABLE",),
    "JoinGroup": _COORDINATOR,
    "SyncGroup": (*_COORDINATOR, "REBALANCE_IN_PROGRESS"),
    "Heartbeat": (*_COORDINATOR, "REBALANCE_IN_PROGRESS"),
    "OffsetCommit": (*_COORDINATOR, "REQUEST_TIMED_OUT"),
    "AddPartitionsToTxn": (*_COORDINATOR, "CONCURRENT_TRANSACTIONS"),
    "EndTxn": (*_COORDINATOR, "CONCURRENT_TRANSACTIONS"),
}  # fmt: skip
"""By request, the retriable errors that brokers send for it, or that clients must expect."""
_APPENDED: Final = frozenset({"Produce", "OffsetCommit", "EndTxn"})
_OF_GROUPS: Final = frozenset(
    {"FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit"}
)


class Case(NamedTuple):
    """A request, the error that answers it, and whether it is carried out."""

    api: str
    error: str
    after: str


def cases() -> Iterable[Case]:
    """Yield all cases in the order of the table."""
    for api, errors in CASES.items():
        for after in ("refused", "appended")[: 1 + (api in _APPENDED)]:
            yield from (Case(api, error, after) for error in errors)


class Lab(NamedTuple):
    """The cluster and its nemesis, and the driver of the client under test."""

    bootstrap: str
    nemesis: ManualNemesis
    driver: Any
    topic: str
    acknowledged: set[bytes]


async def _send(lab: Lab) -> list[str]:
    producer = await lab.driver.producer(lab.bootstrap, "client")
    try:
        return await _sent(lab, producer)
    finally:
        await producer.close()


async def _sent(lab: Lab, producer: Any) -> list[str]:
    """Send all records, several at a time; return the errors."""
    errors = []
    for first in range(0, RECORDS, 5):
        values = [b"%d" % number for number in range(first, first + 5)]
        futures = [await producer.send(lab.topic, 0, value) for value in values]
        results = await asyncio.gather(*futures, return_exceptions=True)
        for value, result in zip(values, results, strict=True):
            if isinstance(result, int):
                lab.acknowledged.add(value)
            elif isinstance(result, SendFailed):
                errors.append(_code(result))
            else:
                raise result
    return errors


async def _transact(lab: Lab) -> list[str]:
    producer = await lab.driver.transactional(lab.bootstrap, "client", f"id of {lab.topic}")
    try:
        await producer.begin()
        sent: set[bytes] = set()
        errors = await _sent(lab._replace(acknowledged=sent), producer)
        await producer.commit()
        lab.acknowledged.update(sent)
        return errors
    finally:
        await producer.close()


async def _read(lab: Lab) -> list[str]:
    consumer = await lab.driver.consumer(lab.bootstrap, "client")
    try:
        await consumer.assign(lab.topic, [0])
        return await _polled(consumer)
    finally:
        await consumer.close()


async def _read_in_group(lab: Lab) -> list[str]:
    """Read and commit; return the errors that the application had to handle."""
    member = await lab.driver.member(
        lab.bootstrap, "client", Membership(group_id=f"group of {lab.topic}")
    )
    try:
        await member.subscribe(lab.topic)
        errors = await _polled(member)
        for _ in range(TIMES + 2):
            try:
                await member.commit(lab.topic, {0: RECORDS})
                break
            except DriverError as error:
                errors.append(f"commit: {_code(error)}")
        rule = lab.nemesis.rules()[-1]
        for _ in range(40):  # a heartbeat is due each few seconds
            if rule["api"] != "Heartbeat" or lab.nemesis.rules()[-1]["matches"] >= TIMES:
                break
            await member.poll(500)
        committed = await member.committed(lab.topic, [0])
        return errors if committed == {0: RECORDS} else [*errors, f"committed {committed}"]
    finally:
        await member.close()


async def _polled(consumer: Any) -> list[str]:
    """Poll until all records came; return the errors, and the records that came twice."""
    got, errors = Counter[bytes](), []
    while len(got) < RECORDS:
        try:
            got.update(record.value for record in await consumer.poll(300))
        except DriverError as error:
            errors.append(f"poll: {_code(error)}")
    return errors + ["read twice"] * any(n > 1 for n in got.values())


def _code(error: BaseException) -> str:
    return str(error).partition(":")[0]


async def outcome(lab: Lab, case: Case) -> str:
    """Return the effect of one case on a client."""
    acts: dict[str, Callable[[Lab], Awaitable[list[str]]]] = {
        **dict.fromkeys(("Fetch", "ListOffsets"), _read),
        **dict.fromkeys(_OF_GROUPS, _read_in_group),
        **dict.fromkeys(("AddPartitionsToTxn", "EndTxn"), _transact),
    }
    act = acts.get(case.api, _send)
    writes = act in {_send, _transact}
    async with Admin(lab.bootstrap) as admin:
        await admin.create_topics([NewTopic(lab.topic, 1, 3)])
    if not writes:
        await _send(lab._replace(driver=load_driver("client"), acknowledged=set()))
    async with lab.nemesis.answering(
        case.api, case.error, client_id="client", times=TIMES, after=case.after
    ) as rule:
        try:
            errors = await asyncio.wait_for(act(lab), _TIMEOUT_S)
        except TimeoutError:
            errors = [f"not done in {_TIMEOUT_S:g} s"]
        except ConnectionError as error:
            errors = [_code(error)]
        matches = rule.matches
    if not matches:
        return "not sent"
    there = await _records_of(lab)
    words = [f"{code}{f' x{n}' if n > 1 else ''}" for code, n in Counter(errors).items()]
    words += ["**duplicates**"] if any(n > 1 for n in there.values()) else []
    words += ["**lost**"] if lab.acknowledged - there.keys() else []
    return ", ".join(words) or "retries"


async def _records_of(lab: Lab) -> Counter[bytes]:
    async with Consumer(lab.bootstrap, isolation_level="read_committed") as consumer:
        at = TopicPartition(lab.topic, 0)
        consumer.assign([at])
        consumer.seek_to_beginning(at)
        end = (await consumer.end_offsets([at]))[at]
        found = Counter[bytes]()
        while await consumer.position(at) < end:
            for records in (await consumer.poll(300)).values():
                found.update(record.value or b"" for record in records)
        return found


async def _column(bootstrap: str, nemesis: ManualNemesis, client: str) -> list[str]:
    driver, found = load_driver(client), []
    for number, case in enumerate(cases()):
        lab = Lab(bootstrap, nemesis, driver, f"{client}-{number}", set())
        found.append(await outcome(lab, case))
        CONSOLE.print(client, *case, found[-1], sep="\t", markup=False)
    return found


def table(clients: Iterable[str], columns: Iterable[list[str]]) -> str:
    """Return the table as Markdown."""
    names = [*clients]
    lines = [f"{BEGIN} {' | '.join(names)} |", "|---" * (3 + len(names)) + "|"]
    for case, *effects in zip(cases(), *columns, strict=True):
        cells = [case.api, f"`{case.error}`", case.after, *effects]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run all cases, and write the table."""
    clients = []
    for name in sys.argv[1:] or DRIVERS:
        try:
            load_driver(name)
            clients.append(name)
        except DriverUnavailable as error:
            CONSOLE.print(error)
    with tempfile.TemporaryDirectory() as directory:
        cluster = LocalCluster(Path(directory) / "cluster", nodes=3)
        with started(cluster, Equipment(links=True)) as back_end:
            nemesis = ManualNemesis(
                back_end, topics=list, topic=None, seed=1, record=lambda *_: None, outlives=False
            )
            with nemesis:
                columns = [
                    asyncio.run(_column(cluster.bootstrap, nemesis, client)) for client in clients
                ]
    made = table(clients, columns)
    if {*clients} == {*DRIVERS} and PAGE.exists():
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(page[: page.index(BEGIN)] + made, encoding="utf-8")
    sys.stdout.write(made)


if __name__ == "__main__":
    main()
