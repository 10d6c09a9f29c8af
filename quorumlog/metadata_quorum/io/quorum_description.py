"""Descriptions of the quorum: by its leader for DescribeQuorum, by any node for a status page.

The core's monotonic times become wall-clock times. Sources: KIP-595 (DescribeQuorum), KIP-836
(times of replicas).
"""

from collections.abc import Iterable
from dataclasses import replace

from quorumlog.metadata_quorum.controller_client import QuorumDescription, QuorumReplica
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.roles import Leader, Progress
from quorumlog.metadata_quorum.driver.dependencies import NotController
from quorumlog.metadata_quorum.io.address_book import AddressBook
from quorumlog.wire.codec.identifiers import BrokerId


def describe_quorum(
    quorum: Quorum,
    addresses: AddressBook,
    *,
    now_ms: int,
    wall_ms: int,
    directory_id: str | None = None,
) -> QuorumDescription:
    """Describe the quorum at the driver's `now_ms`, which is `wall_ms` since 1970.

    `directory_id`: this node's own. Observers that have been silent for
    `controller.quorum.observer.session.ms` are left out. Raises NotController: this node does not
    lead.
    """
    role = quorum.state.role
    if not isinstance(role, Leader):
        raise NotController("this node does not lead the quorum")
    now_ms -= quorum.state.timeouts.waited_ms
    silent_ms = now_ms - quorum.settings.controller_quorum_observer_session_ms
    own = QuorumReplica(
        replica_id=quorum.node_id,
        log_end_offset=quorum.state.log.end_offset,
        last_fetch_ms=wall_ms,
        last_caught_up_ms=wall_ms,
        directory_id=directory_id,
    )
    observing = (
        (replica_id, progress)
        for replica_id, progress in role.observers.items()
        if progress.last_fetch_ms is not None and progress.last_fetch_ms >= silent_ms
    )
    observers = _replicas(observing, wall_ms - now_ms)
    followers = [*_replicas(role.followers.items(), wall_ms - now_ms)]
    voters = followers + [own] * quorum.state.is_voter
    return QuorumDescription(
        leader_id=quorum.node_id,
        leader_epoch=quorum.state.leader_epoch,
        high_watermark=role.high_watermark,
        voters=_sorted(_with_key(quorum, voter) for voter in voters),
        observers=_sorted([*observers, *[own] * (not quorum.state.is_voter)]),
        voter_addresses=addresses.voter_addresses(),
        observer_addresses={
            observer: address
            for observer in sorted(role.observers)
            if (address := addresses.known_to_all(observer))
        },
    )


def _with_key(quorum: Quorum, replica: QuorumReplica) -> QuorumReplica:
    """Add the directory id that makes the replica a voter, also before its first fetch."""
    voter = quorum.state.voter_set.get(replica.replica_id)
    if voter is None or not voter.directory_id:
        return replica
    return replace(replica, directory_id=voter.directory_id)


def _sorted(replicas: Iterable[QuorumReplica]) -> tuple[QuorumReplica, ...]:
    return tuple(sorted(replicas, key=lambda replica: replica.replica_id))


def _replicas(
    known: Iterable[tuple[BrokerId, Progress]], to_wall_ms: int
) -> Iterable[QuorumReplica]:
    for replica_id, progress in sorted(known, key=lambda pair: pair[0]):
        yield QuorumReplica(
            replica_id=replica_id,
            log_end_offset=progress.fetch_offset,
            last_fetch_ms=_since_1970(progress.last_fetch_ms, to_wall_ms),
            last_caught_up_ms=_since_1970(progress.caught_up_ms, to_wall_ms),
            directory_id=progress.directory_id,
        )


def _since_1970(time_ms: int | None, to_wall_ms: int) -> int:
    return -1 if time_ms is None else time_ms + to_wall_ms


def describe_status(
    quorum: Quorum, addresses: AddressBook, *, directory_id: str | None
) -> dict[str, object]:
    """Describe the quorum. Only on its leader do voters and observers have a fetch offset.

    `directory_id`: this node's own.
    """
    role = quorum.state.role
    return {
        "node_id": quorum.node_id,
        "directory_id": directory_id,
        "leader_epoch": quorum.state.leader_epoch,
        "voted_id": quorum.state.voted_id,
        "high_watermark": quorum.state.log.high_watermark,
        "role": type(role).__name__.lower(),
        "kraft_version": addresses.kraft_version,
        "voters": [
            {
                "id": node_id,
                "address": address,
                "directory_id": _directory_of(quorum, node_id),
                **_progress(quorum, node_id),
            }
            for node_id, address in addresses.voter_addresses().items()
        ],
        "observers": [
            {"id": node_id, **_progress(quorum, node_id)}
            for node_id in (sorted(role.observers) if isinstance(role, Leader) else ())
        ],
    }


def _directory_of(quorum: Quorum, voter_id: BrokerId) -> str | None:
    """Return a voter's directory id; None at kraft.version 0."""
    voter = quorum.state.voter_set.get(voter_id)
    return None if voter is None else voter.directory_id or None


def _progress(quorum: Quorum, node_id: BrokerId) -> dict[str, int | None]:
    """Return a node's fetch offset and lag; None if only the leader has them."""
    end_offset, fetched = quorum.state.log.end_offset, None
    role = quorum.state.role
    if node_id == quorum.node_id:
        fetched = end_offset
    elif isinstance(role, Leader):
        progress = role.followers.get(node_id) or role.observers.get(node_id)
        fetched = None if progress is None or progress.fetch_offset < 0 else progress.fetch_offset
    return {"fetch_offset": fetched, "lag": None if fetched is None else end_offset - fetched}
