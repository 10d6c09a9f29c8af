"""Every mutant, by name, with the parts of a whole node that has its bug.

The simulated worlds take the same classes from the files of the subjects.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.broker.partitions.log.dependencies import PartitionDependencies
from quorumlog.broker.server.api import ApiHandler, BrokerContext, Handle, Reply, when_done
from quorumlog.chaos.mutants.administration import CHURN, MOVES
from quorumlog.chaos.mutants.consumer_groups import CONSUMER_GROUPS, MIXED_GROUPS
from quorumlog.chaos.mutants.controller import CONTROLLERS, ELECTIONS
from quorumlog.chaos.mutants.directories import DIRECTORIES, LOSSES
from quorumlog.chaos.mutants.groups import GROUPS, TRANSACTIONAL_OFFSETS
from quorumlog.chaos.mutants.mirror import MIRRORS
from quorumlog.chaos.mutants.mutant import Mutant
from quorumlog.chaos.mutants.parts import REAL_PARTS, ChangedResponses
from quorumlog.chaos.mutants.processes import PROCESSES
from quorumlog.chaos.mutants.quorum import FULL_DISKS, QUORUMS
from quorumlog.chaos.mutants.replication import COPIES, FLUSHES, FOLLOWER_READS, PRODUCERS, REPLICAS
from quorumlog.chaos.mutants.requests import REQUESTS
from quorumlog.chaos.mutants.retention import RETENTION
from quorumlog.chaos.mutants.security import SECURITY
from quorumlog.chaos.mutants.storage import DAMAGED_LOGS, STORAGE
from quorumlog.chaos.mutants.transaction_logs import OUTCOMES, TRANSACTION_LOGS
from quorumlog.chaos.mutants.transactions import COORDINATORS
from quorumlog.chaos.mutants.voters import VOTER_RESPONSES, VOTERS
from quorumlog.chaos.registered import registered
from quorumlog.metadata_quorum.io.dependencies import QuorumDependencies
from quorumlog.mirror.dependencies import MirrorDependencies
from quorumlog.node.dependencies import NodeDependencies
from quorumlog.storage.io.disk import Disk
from quorumlog.wire.codec.message import Response
from quorumlog.wire.codec.schemas import RequestHeader, message_of

_SUBJECTS: Final = (
    PROCESSES,
    REPLICAS, FLUSHES, CONTROLLERS, COORDINATORS, TRANSACTION_LOGS, QUORUMS, VOTERS,
    GROUPS, TRANSACTIONAL_OFFSETS, CONSUMER_GROUPS, MIXED_GROUPS, STORAGE, RETENTION, DAMAGED_LOGS,
    ELECTIONS, CHURN, MOVES, FOLLOWER_READS, DIRECTORIES, LOSSES, OUTCOMES, VOTER_RESPONSES,
    FULL_DISKS, PRODUCERS, REQUESTS, COPIES, SECURITY, MIRRORS,
)  # fmt: skip


class NodeMutant(Mutant):
    """A mutant as a whole node."""

    @property
    def disk(self) -> Callable[[Disk], Disk]:
        """Wraps a machine's disk in the disk that its node uses."""
        return self.parts.disk

    @property
    def dependencies(self) -> NodeDependencies:
        """The parts of a new node, but for its disk."""
        parts = self.parts
        return NodeDependencies(
            partition_rules=parts.partition,
            handlers=HANDLERS if parts.responses is None else _changing(parts.responses()),
            new_logs=partial(parts.directory, new_log=parts.log),
            new_dependencies=partial(PartitionDependencies, new_flusher=parts.flusher),
            quorum=QuorumDependencies(
                quorum=parts.quorum,
                controller=parts.controller,
                new_log=parts.metadata_log,
                driver=parts.driver,
            ),
            group_rules=parts.groups,
            transaction_rules=parts.transactions,
            new_authorizer=partial(parts.authorizer, new_index=parts.acl_index),
            new_session=parts.session,
        )

    @property
    def mirror(self) -> MirrorDependencies:
        """The parts of a mirror that runs beside the nodes."""
        return MirrorDependencies(**self.parts.mirror)


def _changing(changes: ChangedResponses) -> Mapping[int, ApiHandler]:
    real = HANDLERS[changes.api_key]
    handle = _changed(real.handle, changes)
    return MappingProxyType(
        {**HANDLERS, changes.api_key: replace(real, handle=handle, handle_run=None)}
    )


def _changed(real: Handle, changes: ChangedResponses) -> Handle:
    def handle(context: BrokerContext, header: RequestHeader, request: Any) -> Reply:
        request = changes.asked(request)

        def change(response: Response | None) -> Any:
            message = None if response is None else message_of(header, response)
            return changes.changed(request, message)

        reply = real(context, header, request)
        if asyncio.iscoroutine(reply):
            return _change_result(reply, change)
        if isinstance(reply, asyncio.Future):
            return when_done(reply, change)
        response: Response | None = change(reply)
        return response

    return handle


async def _change_result(
    reply: Coroutine[Any, Any, Response | None], change: Callable[[Any], Any]
) -> Response | None:
    response: Response | None = change(await reply)
    return response


EVERY: Final[Mapping[str, NodeMutant]] = {
    name: NodeMutant(**vars(mutant)) for subject in _SUBJECTS for name, mutant in subject.items()
}
"""All mutants, in the order of lists."""
MUTANTS: Final[Mapping[str, NodeMutant]] = {
    name: mutant for name, mutant in EVERY.items() if mutant.is_simulated
}
"""The mutants that whole nodes in simulation run."""
SOUND: Final = NodeMutant(name="", of="", breaks="no rule", parts=REAL_PARTS)


def mutant_called(name: str | None) -> NodeMutant:
    """Return a mutant of the simulation; None: the node without a bug. Raises ValueError."""
    if name is None:
        return SOUND
    return registered(MUTANTS, name.replace("-", "_"), "mutant")


def node_mutant(name: str) -> NodeMutant:
    """Return a mutant for real processes. Raises ValueError with the existing names."""
    simulated = name.replace("-", "_")
    return registered(EVERY, simulated if simulated in EVERY else name, "mutant")
