"""A workload: the clients of a run, and the checker of their history.

A workload is one module of this package that exports `WORKLOAD`; `registry` lists them. `chaos.run`
depends on no workload: it makes the topics, starts the clients, and calls the final reads.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from quorumlog.chaos.drivers.driver import CallTimedOut, Driver
from quorumlog.chaos.drivers.security import PLAINTEXT, of_client
from quorumlog.chaos.history import HistoryWriter
from quorumlog.chaos.schedule import Option
from quorumlog.client.security import SaslMechanism, SecuritySettings

if TYPE_CHECKING:
    from quorumlog.mirror.settings import MirrorSettings  # it loads the whole mirror

O_co = TypeVar("O_co", covariant=True)
_Opened = TypeVar("_Opened")

REOPEN_S: Final = 0.1  # between attempts to open a client while no broker answers


class MirrorProcess(Protocol):
    """A mirror in a process of its own."""

    @property
    def failure(self) -> str | None:
        """The error or the exit status with which it has ended; None: it runs."""

    async def kill(self) -> None:
        """SIGKILL; also of a mirror that is paused, or has ended."""

    async def pause(self) -> None:
        """SIGSTOP."""

    async def resume(self) -> None:
        """SIGCONT."""


StartMirror = Callable[["MirrorSettings"], Awaitable[MirrorProcess]]
"""Starts a mirror. It returns at once: the clusters may be down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup(Generic[O_co]):
    """The inputs of one run's clients. `options` is an instance of the workload's own class.

    `topic` has `partitions`; each has replicas on `replication_factor` nodes. `security`: of the
    clients of the run, and of `driver`; `secured` returns the same driver with another one.
    `target`: the second cluster, with `target_security`; None: there is none, and mirrors copy
    within the first.
    """

    driver: Driver
    bootstrap: str
    topic: str
    partitions: int
    replication_factor: int
    seed: int
    options: O_co
    history: HistoryWriter
    security: SecuritySettings = PLAINTEXT
    secured: Callable[[SecuritySettings], Driver] | None = None
    target: str | None = None
    target_security: SecuritySettings = PLAINTEXT
    start_mirror: StartMirror | None = None

    @property
    def reach(self) -> dict[str, Any]:
        """The arguments of quorumlog's clients for the cluster."""
        return {"bootstrap_servers": self.bootstrap, **of_client(self.security)}

    @property
    def reach_target(self) -> dict[str, Any]:
        """The arguments of quorumlog's clients for the cluster that mirrors write to."""
        if self.target is None:
            return self.reach
        return {"bootstrap_servers": self.target, **of_client(self.target_security)}

    def rng(self, who: str) -> random.Random:
        """Return the random numbers of a client, which depend on its name and the seed alone."""
        return random.Random(f"{who} of {self.seed}")  # noqa: S311 - reproducible


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic that must exist before the clients start. `config`: by Kafka's names."""

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredSecurity:
    """The security of the cluster that a run starts for its workload: SASL and ACLs.

    The clients of the run are the super user. `config`: settings of the nodes, by Kafka's names.
    """

    mechanism: SaslMechanism
    super_user: str
    config: Mapping[str, str]


class Clients(Protocol):
    """The clients of one run. They write every operation into `Setup.history`."""

    async def work(self, working: asyncio.Event) -> None:
        """Work until `working` is cleared."""

    async def final_reads(self, timeout_s: float) -> bool:
        """Read every partition to its end; return whether that was done in time.

        It is called when the cluster is healed and `work` has returned.
        """


def one_topic(
    setup: Setup[Any], config: Mapping[str, str] = MappingProxyType({})
) -> tuple[Topic, ...]:
    """Return the topic that `--partitions` and `--replication` describe, with this `config`."""
    return (
        Topic(
            name=setup.topic,
            partitions=setup.partitions,
            replication_factor=setup.replication_factor,
            config=config,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(Generic[O_co]):
    """One kind of load.

    options: a frozen dataclass whose fields are made by `option`.
    model: the checker of the history, by its name in checkers.registry.
    dense: every offset of its topics holds a record: no transactions, no compaction, no retention.
    requires: the capabilities that its driver must have (drivers.driver.CAPABILITIES).
    offers: the operations (`f`) that its option `rate` counts: of sends, their messages.
    faults: the faults of a run that names none.
    security: it needs a cluster with users and ACLs; None: it does not.
    is_mirrored: it needs mirrors, and a second cluster where the run can start one.
    """

    name: str
    text: str
    options: type[O_co]
    clients: Callable[[Setup[Any]], Clients]
    topics: Callable[[Setup[Any]], tuple[Topic, ...]] = one_topic
    model: str = "kafka_log"
    dense: bool = False
    requires: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset({"send"})
    faults: tuple[str, ...] = ("kill",)
    security: RequiredSecurity | None = None
    is_mirrored: bool = False

    def read_options(self, given: Mapping[str, Option]) -> O_co:
        """Return the options with these values, which may be text, and defaults for the rest.

        Raises ValueError that names the option.
        """
        known = {known.name: known for known in fields(self.options)}  # type: ignore[arg-type]  # a dataclass
        values: dict[str, Option] = {}
        for name, value in given.items():
            if name not in known:
                there_are = ", ".join(known) or "none"
                raise ValueError(f"{self.name} has no option {name!r}; choose from {there_are}")
            values[name] = _value(name, value, known[name].type, known[name].metadata["above"])
        return self.options(**values)

    def described_options(self) -> dict[str, str]:
        """Return each option with its help and its default."""
        known = fields(self.options)  # type: ignore[arg-type]  # a dataclass
        return {each.name: f"{each.metadata['text']} ({each.default})" for each in known}


def option(default: Any, text: str, *, above: float = 0) -> Any:
    """Return a field of a class of options; its value is an int or a float above `above`."""
    return field(default=default, metadata={"text": text, "above": above})


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneOptions:
    """The number of clients, and the rate of sends."""

    rate: float = option(600.0, "sends a second of all producers, while brokers answer")
    producers: int = option(8, "clients that send, one record at a time each")
    consumers: int = option(3, "clients that read every partition during the run", above=-1)
    final_readers: int = option(2, "clients that read everything at the end")


def options_of(options: Any) -> dict[str, Option]:
    """Return the options as plain values."""
    return asdict(options)


def _value(name: str, value: Option, kind: Any, above: float) -> Option:
    try:
        number: int | float = kind(str(value))
    except ValueError:
        raise ValueError(f"{name} {value}: it must be of type {kind.__name__}") from None
    if not above < number < inf:
        raise ValueError(f"{name} {number:g}: it must be above {above:g}")
    return number


async def opened(opening: Awaitable[_Opened]) -> _Opened | None:
    """Return the client of `opening`, or None, a moment later, if no broker answers."""
    try:
        return await opening
    except ConnectionError:
        await asyncio.sleep(REOPEN_S)
        return None


async def use_clients(
    goes_on: Callable[[], bool],
    opening: Callable[[], Awaitable[tuple[int, Any]]],
    act: Callable[[Any, int], Awaitable[bool]],
) -> None:
    """Act with one client after the other while `goes_on`.

    opening: returns a new process with its client; None: no broker answers.
    act: acts once with the client of a process; returns whether that client can be used again.
        After CallTimedOut it cannot.
    """
    while goes_on():
        process, client = await opening()
        if client is None:
            continue
        try:
            while await act(client, process) and goes_on():
                pass
        except CallTimedOut:
            continue
        finally:
            await client.close()


def before(deadline_s: float) -> bool:
    """Return whether the event loop's clock has not reached the deadline."""
    return asyncio.get_running_loop().time() < deadline_s
