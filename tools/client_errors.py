"""Answers requests of installed clients with errors, and writes the table of the effects.

    python -m tools.client_errors [CLIENT ...]      default: all installed drivers of the lab
    python -m tools.client_errors java=DIRECTORY    the Java client, with the jars of the directory

Each case has a topic of its own on a cluster of three nodes: a rule answers three requests with an
error while the client sends, reads, reads in a group, or commits a transaction. The topic is then
read by quorumlog's client. The table is in docs/client-errors.md: the other columns stay.
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
from quorumlog.invariants import some

PAGE: Final = Path(__file__).parent.parent / "docs/client-errors.md"
CONSOLE: Final = Console(stderr=True, soft_wrap=True)
_CASE: Final = ("request", "error", "after")
BEGIN: Final = f"| {' | '.join(_CASE)} |"
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


class JavaClient:
    """The Java client, in a process that performs one command after the other."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process: Final = process

    @classmethod
    async def started(cls, bootstrap: str, jars: str) -> "JavaClient":
        """Start it. Raises OSError if there is no Java."""
        words = (bootstrap, str(RECORDS), str(TIMES + 2), str(int(_TIMEOUT_S)))
        source = Path(__file__).parent / "ClientErrors.java"
        pipe = asyncio.subprocess.PIPE
        options = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{jars}/*")
        process = await asyncio.create_subprocess_exec(
            "java", *options, str(source), *words, stdin=pipe, stdout=pipe
        )
        return cls(process)

    async def close(self) -> None:
        """End it with its standard input."""
        some(self._process.stdin, "a pipe").close()
        await self._process.wait()

    async def perform(self, lab: "Lab", command: str) -> list[str]:
        """Perform a command on the topic; return the errors. Raises ConnectionError: it ended."""
        stdin, stdout = some(self._process.stdin, "a pipe"), some(self._process.stdout, "a pipe")
        stdin.write(f"{command} {lab.topic}\n".encode())
        line = (await stdout.readline()).decode()
        if not line:
            raise ConnectionError("the Java client has ended: see its messages above")
        words = line.rstrip("\n").split("\t")
        lab.acknowledged.update(word[1:].encode() for word in words if word.startswith("+"))
        return [word[1:] for word in words if word.startswith("-")]

    async def perform_case(self, lab: "Lab", case: Case) -> list[str]:
        """Perform the command of a case; return the errors."""
        command = _JAVA.get(case.api, "send")
        errors = await self.perform(lab, command)
        if command != "group":
            return errors
        for _ in range(40):  # as in `_read_in_group`
            if case.api != "Heartbeat" or lab.nemesis.rules()[-1]["matches"] >= TIMES:
                break
            errors += await self.perform(lab, "poll")
        return errors + await self.perform(lab, "leave")


_JAVA: Final[Mapping[str, str]] = {
    **dict.fromkeys(("Fetch", "ListOffsets"), "read"),
    **dict.fromkeys(_OF_GROUPS, "group"),
    **dict.fromkeys(("AddPartitionsToTxn", "EndTxn"), "transact"),
}


class Lab(NamedTuple):
    """The cluster and its nemesis, and the driver of the client under test, or a JavaClient."""

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
            if isinstance(lab.driver, JavaClient):
                errors = await lab.driver.perform_case(lab, case)
            else:
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
    client, _, jars = client.partition("=")
    found: list[str] = []
    driver = await JavaClient.started(bootstrap, jars) if jars else load_driver(client)
    for number, case in enumerate(cases()):
        lab = Lab(bootstrap, nemesis, driver, f"{client}-{number}", set())
        found.append(await outcome(lab, case))
        CONSOLE.print(client, *case, found[-1], sep="\t", markup=False)
    if isinstance(driver, JavaClient):
        await driver.close()
    return found


def columns_of(page: str) -> dict[str, list[str]]:
    """Return the columns of the table of a page, by client; of other cases: none."""
    rows = [line[2:-2].split(" | ") for line in page[page.index(BEGIN) :].splitlines()]
    names, _, *lines = rows
    if [(api, error, after) for api, error, after, *_ in lines] != [
        (case.api, f"`{case.error}`", case.after) for case in cases()
    ]:
        return {}
    columns = zip(*lines, strict=True)
    return {name: [*column] for name, column in zip(names, columns, strict=True)}


def table(columns: Mapping[str, list[str]]) -> str:
    """Return the table as Markdown. `columns`: by client."""
    lines = [f"{BEGIN} {' | '.join(columns)} |", "|---" * (3 + len(columns)) + "|"]
    for case, *effects in zip(cases(), *columns.values(), strict=True):
        cells = [case.api, f"`{case.error}`", case.after, *effects]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run all cases, and write the table."""
    clients = []
    for name in sys.argv[1:] or DRIVERS:
        try:
            if not name.startswith("java="):
                load_driver(name)
            clients.append(name)
        except DriverUnavailable as error:
            CONSOLE.print(error)
    page = PAGE.read_text(encoding="utf-8")
    columns = {name: cells for name, cells in columns_of(page).items() if name not in _CASE}
    with tempfile.TemporaryDirectory() as directory:
        cluster = LocalCluster(Path(directory) / "cluster", nodes=3)
        with started(cluster, Equipment(links=True)) as back_end:
            nemesis = ManualNemesis(
                back_end, topics=list, topic=None, seed=1, record=lambda *_: None, outlives=False
            )
            with nemesis:
                for client in clients:
                    column = asyncio.run(_column(cluster.bootstrap, nemesis, client))
                    columns[client.partition("=")[0]] = column
    made = table(columns)
    PAGE.write_text(page[: page.index(BEGIN)] + made, encoding="utf-8")
    sys.stdout.write(made)


if __name__ == "__main__":
    main()
