"""How a simulated node writes its log, and tells the oracle first: power loss may come within."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from quorumlog.chaos.simulation.worlds.entries import CONTROL, Entry, content_of, entries_of
from quorumlog.chaos.simulation.worlds.quorum.oracle import Oracle
from quorumlog.metadata_quorum.core import effects
from quorumlog.metadata_quorum.log.voter_records import encode_voters

if TYPE_CHECKING:
    from quorumlog.chaos.simulation.worlds.quorum.node import QuorumNode

LogWrite = (
    effects.AppendFetched
    | effects.TruncateLog
    | effects.AppendLeaderChange
    | effects.AppendVoters
    | effects.AppendSnapshot
)


def write(
    node: "QuorumNode", effect: LogWrite, oracle: Oracle, responses: Mapping[int, bytes]
) -> None:
    """Perform an effect. `responses`: what was fetched, by request. Raises StorageError."""
    match effect:
        case effects.AppendFetched(request_id=request_id):
            records = responses[request_id]
            oracle.appended(node.node_id, entries_of(records))
            node.log.append_fetched(records)
        case effects.TruncateLog(end_offset=end_offset):
            oracle.truncates(node.node_id, end_offset)
            node.log.truncate_to(end_offset)
            oracle.truncated(node.node_id, end_offset)
        case effects.AppendLeaderChange(leader_epoch=epoch):
            oracle.appended(node.node_id, [Entry(epoch, CONTROL, 0)])
            node.log.append_leader_change(effect, wall_ms=node.machine.now_ms())
        case effects.AppendVoters(leader_epoch=epoch, voters=voters):
            oracle.changes_voters(node.node_id, epoch)
            pairs = encode_voters(voters, sets_kraft_version=effect.sets_kraft_version)
            entries = [Entry(epoch, content_of(*pair), at) for at, pair in enumerate(pairs)]
            oracle.appended(node.node_id, entries)
            node.log.append_voters(effect, wall_ms=node.machine.now_ms())
        case effects.AppendSnapshot(request_id=request_id, snapshot_id=snapshot_id):
            content = responses[request_id]
            node.log.snapshots.append_fetched(snapshot_id, effect.position, content)
