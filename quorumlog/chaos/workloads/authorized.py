"""authorized: users send and read while their rights and their passwords change.

It proves or refutes that a change of a right (an ACL) or a password (a SCRAM credential) holds for
every operation that begins once all brokers have it, and that sessions end (KIP-368). The checker
is `authorized`; the rules of a log find lost records, and records of refused sends.

There are two topics, `T` and `my-T`: a prefixed ACL of the first one must not concern the other.
Each user has lanes: one sends, one reads, one logs in with the present or a former password, and
its administrator makes one change after the other. A user whose change has an unknown outcome is
replaced. A history holds, beside sends and final reads (`f`):

  open       a client begins as a process. key: its user; value: the number of its password.
  read       assigns a partition from its beginning and polls. key: the partition; value: the number
             of returned records.
  access     a change of rights, complete when every broker has it in force. Its micro-operations
             `allow_read`, `allow_write` have the key `user@topic`; value: 1 allowed, 0 denied.
  password   a change of a password, complete as `access`. key: the user; value: the number; 0: it
             is deleted. Its micro-operation `session_ms`: the lifetime of sessions; 0: no limit.
  login      a connection to a broker that authenticates. key: the user; value: the number.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, Final, Generic, TypeVar

from quorumlog.chaos.drivers.driver import CallTimedOut, Driver, DriverConsumer, DriverProducer
from quorumlog.chaos.drivers.security import of_client
from quorumlog.chaos.history import UNKNOWN_OFFSET, Message
from quorumlog.chaos.workloads.access_changes import MECHANISM, Administrator, User
from quorumlog.chaos.workloads.readers import Readers, key_of
from quorumlog.chaos.workloads.sends import attempt, record_of
from quorumlog.chaos.workloads.workload import (
    LaneOptions,
    RequiredSecurity,
    Setup,
    Topic,
    Workload,
    one_topic,
    opened,
    option,
)
from quorumlog.client import Admin
from quorumlog.client.security import SecuritySettings
from quorumlog.wire.io.connection import (
    AuthenticationFailed,
    ConnectionLost,
    KafkaConnection,
    RequestTimedOut,
)

_SECURITY: Final = RequiredSecurity(
    mechanism=MECHANISM, super_user="admin", config={"connections.max.reauth.ms": "2000"}
)
_TIMEOUT_MS: Final = 2_000
_POLL_MS: Final = 300
_SECOND_READER: Final = 100_000  # the first process that reads the second topic in the end
_FIRST_PROCESS: Final = 1_000_000
_NO_RIGHT: Final = "TOPIC_AUTHORIZATION_FAILED"
_ClientT = TypeVar("_ClientT", DriverConsumer, DriverProducer)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizedOptions:
    """The number of users, and the rates of their operations."""

    rate: float = option(60.0, "sends a second of all users, allowed or refused")
    users: int = option(3, "users at a time, each with a client that sends and one that reads")
    reads: float = option(20.0, "reads a second of all users")
    changes: float = option(4.0, "changes of rights and passwords a second, while brokers answer")
    passwords: float = option(0.15, "share of the changes that concern a password", above=-1)
    logins: float = option(6.0, "logins a second, half of them with any former password")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cluster:
    """The administrator of the run, the brokers' addresses by id, and the lifetime of sessions."""

    admin: Admin
    brokers: Mapping[int, tuple[str, int]]
    session_ms: int


class Authorized:
    """The lanes of one run."""

    def __init__(self, setup: Setup[AuthorizedOptions]) -> None:
        if setup.secured is None:
            raise ValueError("the workload authorized needs a driver that logs in as several users")
        self._setup: Final = setup
        self._secured: Final = setup.secured
        self._history: Final = setup.history
        self._topics: Final = [topic.name for topic in topics(setup)]
        self._new_process: Final = count(_FIRST_PROCESS).__next__
        self._new_value: Final = count().__next__

    async def work(self, working: asyncio.Event) -> None:
        """Send, read, log in, and change rights and passwords, until `working` is cleared."""
        admin = Admin(
            self._setup.bootstrap,
            **of_client(self._setup.security),
            request_timeout_ms=_TIMEOUT_MS,
            default_api_timeout_ms=_TIMEOUT_MS,
        )
        async with admin:
            nodes = (await admin.describe_cluster()).nodes
            configs = await admin.describe_configs("broker", str(min(nodes)))
            cluster = _Cluster(
                admin=admin,
                brokers={one: (node.host, node.port) for one, node in sorted(nodes.items())},
                session_ms=int(configs["connections.max.reauth.ms"].value or 0),
            )
            async with asyncio.TaskGroup() as tasks:
                for number in range(self._setup.options.users):
                    tasks.create_task(self._live(f"u{number}", cluster, working))

    async def _live(self, name: str, cluster: _Cluster, working: asyncio.Event) -> None:
        """Be one user after the other until `working` is cleared."""
        options = self._setup.options
        for life in count():
            if not working.is_set():
                return
            user = User(f"{self._setup.topic}-{name}-{life}")
            rng = self._setup.rng(user.name)

            def goes_on(user: User = user) -> bool:
                return working.is_set() and not user.is_given_up

            administrator = Administrator(
                user=user,
                admin=cluster.admin,
                process=self._new_process(),
                history=self._history,
                topics=self._topics,
                brokers=[*cluster.brokers],
                session_ms=cluster.session_ms,
                goes_on=goes_on,
                rng=random.Random(rng.random()),  # noqa: S311 - reproducible
            )
            await administrator.begin()
            paces: list[tuple[float, Callable[[random.Random], Awaitable[None]]]] = [
                (options.rate, self._clients(user, self._producer, self._send)),
                (options.reads, self._clients(user, self._consumer, self._read)),
                (options.logins, partial(self._log_in, user, cluster, self._new_process())),
            ]
            async with asyncio.TaskGroup() as tasks:
                gap_s = options.users / options.changes
                tasks.create_task(administrator.change_on(gap_s, options.passwords))
                for rate, act in paces:
                    own = random.Random(rng.random())  # noqa: S311 - reproducible
                    tasks.create_task(_keep_acting(goes_on, own, options.users / rate, act))

    # --- clients ---

    def _security(self, user: User, number: int) -> SecuritySettings:
        return replace(
            self._setup.security,
            sasl_mechanism=MECHANISM,
            sasl_username=user.name,
            sasl_password=user.text_of(number),
        )

    def _clients(
        self,
        user: User,
        open_client: Callable[[Driver, int], Awaitable[_ClientT]],
        act: Callable[[_ClientT, int, random.Random], Awaitable[bool]],
    ) -> "_Clients[_ClientT]":
        async def opening() -> tuple[int, _ClientT | None]:
            process, number = self._new_process(), user.password
            if not number:
                return process, None
            message = Message(user.name, UNKNOWN_OFFSET, number)
            self._history.append(process, "invoke", "open", [message])
            self._history.append(process, "ok", "open", [message])
            driver = self._secured(self._security(user, number))
            return process, await opened(open_client(driver, process))

        return _Clients(opening, act)

    async def _producer(self, driver: Driver, process: int) -> DriverProducer:
        return await driver.producer(self._setup.bootstrap, f"p{process}")

    async def _consumer(self, driver: Driver, process: int) -> DriverConsumer:
        return await driver.consumer(self._setup.bootstrap, f"c{process}")

    async def _send(self, producer: DriverProducer, process: int, rng: random.Random) -> bool:
        """Send a value; return whether the client can be used again."""
        setup = replace(self._setup, topic=rng.choice(self._topics))
        partition, record = rng.randrange(setup.partitions), record_of(setup, self._new_value())
        sent = await attempt(setup, producer, process, partition, record)
        return isinstance(sent, int) or (sent.definite and str(sent).startswith(_NO_RIGHT))

    async def _read(self, consumer: DriverConsumer, process: int, rng: random.Random) -> bool:
        """Read one partition from its beginning; return whether the client can be used again."""
        topic, partition = rng.choice(self._topics), rng.randrange(self._setup.partitions)
        message = Message(key_of(topic, partition), UNKNOWN_OFFSET, 0)
        self._history.append(process, "invoke", "read", [message])
        try:
            await consumer.assign(topic, [partition])
            records = await consumer.poll(_POLL_MS)
        except ConnectionError as error:
            outcome = "info" if isinstance(error, CallTimedOut) else "fail"
            self._history.append(process, outcome, "read", [message], error=str(error))
            return str(error).startswith(_NO_RIGHT)
        of_it = sum((one.topic, one.partition) == (topic, partition) for one in records)
        self._history.append(process, "ok", "read", [message._replace(value=of_it)])
        return True

    async def _log_in(
        self, user: User, cluster: _Cluster, process: int, rng: random.Random
    ) -> None:
        """Authenticate to a broker, and close the connection."""
        if not user.newest:
            return
        number = rng.choice([user.newest, rng.randint(1, user.newest)])
        host, port = cluster.brokers[rng.choice([*cluster.brokers])]
        message = Message(user.name, UNKNOWN_OFFSET, number)
        self._history.append(process, "invoke", "login", [message])
        outcome, text = "ok", ""
        try:
            connection = await KafkaConnection.open(
                host,
                port,
                client_id=f"l{process}",
                request_timeout_ms=_TIMEOUT_MS,
                security=self._security(user, number).connection_security(),
            )
            await connection.close()
        except AuthenticationFailed as error:
            outcome, text = "fail", f"SASL_AUTHENTICATION_FAILED: {error}"
        except (ConnectionLost, RequestTimedOut) as error:
            outcome, text = "info", f"NO_ANSWER: {error}"
        self._history.append(process, outcome, "login", [message], error=text)

    async def final_reads(self, timeout_s: float) -> bool:
        """Read every log to its end as a super user; return whether that was done in time."""
        first_processes = (0, _SECOND_READER)
        reads = []
        for topic, first in zip(self._topics, first_processes, strict=True):
            options: Any = LaneOptions(producers=first, consumers=0, final_readers=1)
            setup: Setup[Any] = replace(self._setup, topic=topic, options=options)
            reads.append(Readers(setup).final_reads(timeout_s))
        return all(await asyncio.gather(*reads))


class _Clients(Generic[_ClientT]):
    """Acts with one client after the other, each a process; a client lives until it fails."""

    def __init__(
        self,
        opening: Callable[[], Awaitable[tuple[int, _ClientT | None]]],
        act: Callable[[_ClientT, int, random.Random], Awaitable[bool]],
    ) -> None:
        self._opening: Final[Callable[[], Awaitable[tuple[int, _ClientT | None]]]] = opening
        self._act: Final[Callable[[_ClientT, int, random.Random], Awaitable[bool]]] = act
        self._client: _ClientT | None = None
        self._process = -1

    async def __call__(self, rng: random.Random) -> None:
        """Open a client, or act with the one that is open."""
        if self._client is None:
            self._process, self._client = await self._opening()
        elif not await self._act(self._client, self._process, rng):
            await self.close()

    async def close(self) -> None:
        """Close the client."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()


async def _keep_acting(
    goes_on: Callable[[], bool],
    rng: random.Random,
    gap_s: float,
    act: Callable[[random.Random], Awaitable[None]],
) -> None:
    """Act every `gap_s` on average."""
    try:
        while goes_on():
            await asyncio.sleep(rng.expovariate(1 / gap_s))
            await act(rng)
    finally:
        if isinstance(act, _Clients):
            await act.close()


def topics(setup: Setup[Any]) -> tuple[Topic, ...]:
    """Return the two topics; the name of the first is in the name of the second."""
    [first] = one_topic(setup)
    return first, replace(first, name=f"my-{first.name}")


WORKLOAD: Final = Workload(
    name="authorized",
    text="users send and read while their rights, passwords and sessions change and end",
    options=AuthorizedOptions,
    clients=Authorized,
    topics=topics,
    model="authorized",
    dense=True,
    security=_SECURITY,
)
