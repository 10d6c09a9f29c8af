"""One member of a group on a machine of its own: joins, syncs, fetches offsets, commits.

It follows the classic protocol as a consumer does. Every request may be lost or late; a member
that was paused goes on with its generation from before the pause.
"""

from enum import Enum, auto
from typing import Any, Final

from quorumlog.broker.groups.core.requests import (
    CommitOffsets,
    CommittedOffset,
    Heartbeat,
    Join,
    JoinResult,
    Leave,
    LeavingMember,
    Sync,
    SyncResult,
)
from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.worlds.brokers.shard_host import Answer
from quorumlog.chaos.simulation.worlds.groups.cluster import Cluster, positions_of
from quorumlog.chaos.simulation.worlds.groups.commits import Commits
from quorumlog.chaos.simulation.worlds.groups.coordinator_host import (
    CoordinatorHost,
    Offsets,
)
from quorumlog.chaos.simulation.worlds.groups.member_process import (
    BACKOFF_US,
    GROUP_ID,
    HEARTBEAT_US,
    JOIN_TIMEOUT_US,
    REBALANCE_MS,
    MemberProcess,
)
from quorumlog.chaos.simulation.worlds.groups.oracle import (
    Commit,
    GroupOracle,
    Membership,
    Position,
)
from quorumlog.chaos.simulation.worlds.groups.transactions import TransactionCoordinator
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

TOPIC: Final = "read"
LEAVES: Final = 0.02  # the chance that a member leaves instead of a commit


class _Phase(Enum):
    JOINING = auto()
    SYNCING = auto()
    FETCHING = auto()
    OWNING = auto()


class Member(MemberProcess):
    """A Process, and a Client of the brokers' world, with at most one commit under way."""

    def __init__(
        self,
        machine: Machine,
        cluster: Cluster,
        oracle: GroupOracle,
        *,
        rng: Rng,
        partitions: int,
        commit_every_us: int,
        session_ms: int,
        is_static: bool,
        transactions: TransactionCoordinator | None = None,
    ) -> None:
        super().__init__(machine, cluster, rng)
        self._oracle: Final = oracle
        self._partitions: Final = partitions
        self._commit_every_us: Final = commit_every_us
        self._session_ms: Final = session_ms
        self._instance: Final = f"instance {machine.node_id}" if is_static else None
        self._is_stopped = False
        self._commits: Final = Commits[Commit](
            machine, oracle, rng, send=self._send, take=self._take, transactions=transactions
        )
        self._forget()

    def _forget(self) -> None:
        self._phase = _Phase.JOINING
        self._member_id, self._generation_id = "", -1
        self._assignments: dict[str, bytes] = {}  # by member id, if it leads
        self._owned: list[int] = []
        self._positions: dict[int, int] = {}  # the newest offset sent in a commit or fetched

    # --- the process ---

    def boot(self) -> None:
        """Start with nothing in memory."""
        self._forget_requests()
        self._forget()
        self._commits.boot()
        self._join()
        self._every(HEARTBEAT_US, self._heartbeat)
        self._every(self._commit_every_us, self._commit)

    def run(self) -> None:
        """Do nothing: `boot` has sent the first JoinGroup."""

    def stop(self) -> None:
        """Stop committing and leaving; stay a member."""
        self._is_stopped = True

    @property
    def acknowledged(self) -> int:
        """How many commits were acknowledged."""
        return self._commits.acknowledged

    @property
    def _membership(self) -> Membership:
        return Membership(self._instance or self._member_id, self._member_id, self._generation_id)

    def _shown(self) -> str:
        return f"{self._phase.name} {self._membership} {self._owned}"

    def _may_act(self) -> bool:
        return self._phase is _Phase.OWNING

    def _serve(self, host: CoordinatorHost, request: Any, answer: Answer) -> None:
        if request is None:  # the committed offsets
            host.fetch_offsets(GROUP_ID, answer)
        else:
            host.ask(request, answer)

    def _look_elsewhere(self) -> None:
        """Find the coordinator again, and repeat the step of the current phase."""
        self._coordinator = None
        match self._phase:
            case _Phase.JOINING:
                self._join()
            case _Phase.SYNCING | _Phase.FETCHING:
                self._sync()
            case _Phase.OWNING:
                pass  # the next heartbeat finds the coordinator

    def _join_soon(self, error_code: ErrorCode) -> None:
        """Give up all partitions, and join again after a backoff."""
        self._phase, self._owned = _Phase.JOINING, []
        if error_code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}:
            self._member_id = ""
        if error_code in {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}:
            self._coordinator = None
        self._control += 1
        self._is_asking = True
        self._machine.later(BACKOFF_US, self._take, self._join)

    # --- the membership ---

    def _join(self) -> None:
        self._phase = _Phase.JOINING
        request = Join(
            group_id=GROUP_ID,
            member_id=self._member_id,
            new_member_id=self._new_name(),
            group_instance_id=self._instance,
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=(("range", b""),),
        )
        self._ask(request, self._joined, JOIN_TIMEOUT_US)

    def _joined(self, result: JoinResult) -> None:
        if result.error_code is ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = result.member_id
            self._join()
        elif result.error_code is not ErrorCode.NONE:
            self._join_soon(result.error_code)
        else:
            self._member_id, self._generation_id = result.member_id, result.generation_id
            self._assignments = self._assign([one.member_id for one in result.members])
            self._sync()

    def _assign(self, member_ids: list[str]) -> dict[str, bytes]:
        """Return the assignment of each member, as the leader of a generation."""
        name, count = self._new_name(), len(member_ids)
        dealt = [range(index, self._partitions, count) for index in range(count)]
        return {
            member_id: f"{name}:{' '.join(map(str, partitions))}".encode()
            for member_id, partitions in zip(member_ids, dealt, strict=True)
        }

    def _sync(self) -> None:
        self._phase = _Phase.SYNCING
        request = Sync(
            group_id=GROUP_ID,
            generation_id=self._generation_id,
            member_id=self._member_id,
            group_instance_id=self._instance,
            assignments=self._assignments,
        )
        self._ask(request, self._synced, JOIN_TIMEOUT_US)

    def _synced(self, result: SyncResult) -> None:
        if result.error_code is not ErrorCode.NONE:
            self._join_soon(result.error_code)
            return
        assignment, _, partitions = result.assignment.decode().partition(":")
        self._owned = [int(one) for one in partitions.split()]
        if assignment:  # a static member that came late is in no assignment
            self._oracle.assigned(self._membership, assignment, self._owned)
        self._phase = _Phase.FETCHING
        self._ask(None, self._fetched)

    def _fetched(self, answer: Offsets | ErrorCode) -> None:
        if answer is ErrorCode.UNSTABLE_OFFSET_COMMIT:
            self._control += 1
            self._is_asking = True
            self._machine.later(BACKOFF_US, self._take, self._look_elsewhere)
            return
        if isinstance(answer, ErrorCode):
            self._look_elsewhere()
            return
        shown = positions_of(answer)
        self._oracle.fetched(self._membership, shown)
        for partition, position in shown.items():
            known = self._positions.get(partition, -1)
            self._positions[partition] = max(known, position.offset)
        self._phase = _Phase.OWNING

    def _heartbeat(self) -> None:
        if self._is_asking:
            return
        request = Heartbeat(
            group_id=GROUP_ID,
            generation_id=self._generation_id,
            member_id=self._member_id,
            group_instance_id=self._instance,
        )
        self._ask(request, self._heartbeat_answered)

    def _heartbeat_answered(self, error_code: ErrorCode) -> None:
        if error_code in {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}:
            self._coordinator = None
        elif error_code is not ErrorCode.NONE:
            self._join_soon(error_code)

    # --- commits ---

    def _commit(self) -> None:
        """Commit the next offset of each owned partition, or leave now and then."""
        if self._phase is not _Phase.OWNING or self._is_stopped or self._commits.is_under_way:
            return
        if self._instance is None and self._rng.random() < LEAVES:
            self._leave()
            return
        if not self._owned:
            return
        positions = {}
        for partition in self._owned:
            offset = self._positions.get(partition, -1) + self._rng.randrange(1, 10)
            self._positions[partition] = offset
            positions[partition] = Position(offset, self._new_name())
        commit = Commit(self._membership, positions)
        request = CommitOffsets(
            group_id=GROUP_ID,
            generation_id=self._generation_id,
            member_id=self._member_id,
            group_instance_id=self._instance,
            offsets={
                TopicPartition(TOPIC, partition): CommittedOffset(
                    offset=position.offset, metadata=position.tag
                )
                for partition, position in positions.items()
            },
        )
        self._commits.commit(commit, request)

    def _leave(self) -> None:
        leaving = LeavingMember(member_id=self._member_id)
        self._member_id = ""
        self._join_soon(ErrorCode.NONE)
        self._send(Leave(group_id=GROUP_ID, members=(leaving,)), lambda: True, lambda _: None)
