"""The replaceable parts of a node: a mutant replaces some of them by classes that break a rule.

A simulated world takes `Parts` as they are; `registry` makes the `NodeDependencies` of a node.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Final, TypeVar, cast

from quorumlog.broker.authentication.core.session import SaslSession
from quorumlog.broker.authorization.core.acl_index import AclIndex
from quorumlog.broker.authorization.core.authorizer import Authorizer
from quorumlog.broker.groups.core.rules import GROUP_RULES, GroupRules
from quorumlog.broker.partitions.core.partition import KAFKA_RULES, PartitionRules
from quorumlog.broker.partitions.core.partition_invariants import Marks, PartitionInvariants
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.log_flusher import LogFlusher
from quorumlog.broker.transactions.core.rules import SOUND, TransactionRules
from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.driver.driver import Driver
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.messages.fetch import FetchRequest

RulesT = TypeVar("RulesT")


class Unchecked(PartitionInvariants):
    """Invariants without checks: the oracle must find the damage."""

    def check(self, before: Marks, *, truncates: bool = False, cuts: bool = False) -> None:
        """Skip the checks."""


class UncheckedQuorum(Quorum):
    """A quorum without its own checks."""

    def check_invariants(self, before: tuple[int, int, int, int]) -> None:
        """Skip the checks."""


class HandsOn:
    """A wrapper of a disk, or of one of its files."""

    def __init__(self, real: Any) -> None:
        self._real: Final = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class ChangedResponses:
    """Changes a node's requests and responses of one API; each node has one object."""

    api_key: ClassVar[int]

    def asked(self, request: Any) -> Any:
        """Return the request to handle in place of the real one, which it may change."""
        return request

    def changed(self, request: Any, response: Any) -> Any:
        """Return the response to send in place of the real one, which it may change."""
        raise NotImplementedError


def is_from_consumer(request: FetchRequest) -> bool:
    """Return whether a fetch is of a consumer, not of a follower."""
    state = request.replica_state
    return request.replica_id < 0 and (state is None or state.replica_id < 0)


def _unchanged(disk: Disk) -> Disk:
    return disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The defaults are the real parts.

    log, directory: the class of a partition's log, and of the log directory that opens it.
    metadata_log: the class of the metadata log.
    disk: wraps the disk of a machine in the disk that its node uses.
    responses: makes the object that changes responses; None: they are sent as they are.
    acl_index, authorizer, session: the classes that decide about rights and about SASL.
    mirror: classes of a mirror beside the nodes, by their fields of MirrorDependencies.
    """

    partition: PartitionRules = KAFKA_RULES
    flusher: type[LogFlusher] = LogFlusher
    log: type[Log] = Log
    directory: type[LogDirectory] = LogDirectory
    metadata_log: type[Log] = Log
    disk: Callable[[Disk], Disk] = _unchanged
    controller: type[Controller] = Controller
    quorum: type[Quorum] = Quorum
    driver: type[Driver] = Driver
    groups: GroupRules = GROUP_RULES
    transactions: TransactionRules = SOUND
    responses: type[ChangedResponses] | None = None
    acl_index: type[AclIndex] = AclIndex
    authorizer: type[Authorizer] = Authorizer
    session: type[SaslSession] = SaslSession
    mirror: Mapping[str, type[Any]] = field(default_factory=dict)


REAL_PARTS: Final = Parts()
UNCHECKED_RULES: Final = replace(KAFKA_RULES, invariants=Unchecked)
UNCHECKED_PARTS: Final = Parts(partition=UNCHECKED_RULES, quorum=UncheckedQuorum)
"""Parts that do not check their own invariants: the oracle or the history must find a bug."""

_CLASSES: Final[tuple[tuple[str, type[Any]], ...]] = (
    ("log", Log), ("directory", LogDirectory), ("flusher", LogFlusher), ("disk", HandsOn),
    ("controller", Controller), ("quorum", Quorum), ("driver", Driver),
    ("responses", ChangedResponses), ("acl_index", AclIndex), ("authorizer", Authorizer),
    ("session", SaslSession),
)  # fmt: skip


def with_broken(rules: RulesT, *broken: type[Any]) -> RulesT:
    """Return a dataclass of classes in which each of `broken` replaces the class it inherits."""
    sound = {field.name: getattr(rules, field.name) for field in fields(rules)}  # type: ignore[arg-type]  # a dataclass
    planted = {name: one for one in broken for name, rule in sound.items() if issubclass(one, rule)}
    return replace(rules, **planted)  # type: ignore[type-var]  # a dataclass


def broken_parts(*broken: type[Any], sound: Parts = UNCHECKED_PARTS) -> Parts:
    """Return `sound` with each class in the place of the class that it inherits.

    Raises TypeError for a class that inherits no part.
    """
    parts = sound
    for one in broken:
        parts = _with_one(parts, one)
    return parts


def of_every_log(*broken: type[Any]) -> Parts:
    """Return the same, but the metadata log has the class of a partition's log."""
    parts = broken_parts(*broken)
    return replace(parts, metadata_log=parts.log)


def _with_one(parts: Parts, broken: type[Any]) -> Parts:
    for name, base in _CLASSES:
        if issubclass(broken, base):
            return replace(parts, **{name: cast(Any, broken)})
    for name in ("partition", "groups", "transactions"):
        rules = getattr(parts, name)
        changed = with_broken(rules, broken)
        if changed != rules:
            return replace(parts, **{name: cast(Any, changed)})
    for name in ("controller", "quorum"):
        base = getattr(parts, name)
        changed = with_broken(base.rules, broken)
        if changed != base.rules:
            return replace(parts, **{name: cast(Any, type("Mutant", (base,), {"rules": changed}))})
    raise TypeError(f"{broken.__name__} inherits no part of a node")
