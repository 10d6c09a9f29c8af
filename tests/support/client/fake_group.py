"""A coordinator of one group with one member, beside the fake brokers' logs."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import Response
from quorumlog.wire.codec.messages.api_versions import ApiVersion, ApiVersionsResponse
from quorumlog.wire.codec.messages.find_coordinator import FindCoordinatorResponse
from quorumlog.wire.codec.messages.heartbeat import HeartbeatResponse
from quorumlog.wire.codec.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from quorumlog.wire.codec.messages.leave_group import LeaveGroupResponse
from quorumlog.wire.codec.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from quorumlog.wire.codec.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from quorumlog.wire.codec.messages.sync_group import SyncGroupResponse
from quorumlog.wire.codec.records import Record, encode_batch
from tests.support.client.fake_cluster import SPOKEN, FakeCluster, T

COMMIT, OFFSET_FETCH, FIND, JOIN, HEARTBEAT, LEAVE, SYNC = 8, 9, 10, 11, 12, 13, 14
VERSIONS = {COMMIT: 7, OFFSET_FETCH: 7, FIND: 2, JOIN: 5, HEARTBEAT: 3, LEAVE: 3, SYNC: 3}


class GroupCluster(FakeCluster):
    """`beat`: the error code of the next heartbeats; a join makes it NONE again."""

    def __init__(self) -> None:
        super().__init__()
        self.generation = 0
        self.beat = ErrorCode.NONE
        self.committed = -1
        self.commits: list[int] = []
        self.refusals: list[ErrorCode] = []  # the error codes of the next commits

    def fill(self, count: int) -> None:
        """Put a batch of `count` records into the only partition."""
        records = [Record(offset, 0, None, b"%d" % offset) for offset in range(count)]
        self.logs[T] = [encode_batch(records, base_offset=0)]

    def handle(self, broker: int, api: int, request: Any, fault: object) -> Response | None:
        if api == 18:
            spoken = {**SPOKEN, **VERSIONS}.items()
            return ApiVersionsResponse(
                api_keys=[ApiVersion(api_key=key, max_version=version) for key, version in spoken]
            )
        if api not in VERSIONS:
            return super().handle(broker, api, request, fault)
        self.asked.append((broker, api))
        answers: dict[int, Callable[[Any], Response]] = {
            FIND: self.find,
            JOIN: self.join,
            SYNC: lambda sync: SyncGroupResponse(assignment=sync.assignments[0].assignment),
            HEARTBEAT: lambda _: HeartbeatResponse(error_code=self.beat),
            LEAVE: lambda _: LeaveGroupResponse(),
            COMMIT: self.commit,
            OFFSET_FETCH: self.offsets,
        }
        return answers[api](request)

    def find(self, _: object) -> FindCoordinatorResponse:
        host, port = self.addresses[1]
        return FindCoordinatorResponse(node_id=1, host=host, port=port)

    def offsets(self, _: object) -> OffsetFetchResponse:
        one = OffsetFetchResponsePartition(partition_index=0, committed_offset=self.committed)
        return OffsetFetchResponse(topics=[OffsetFetchResponseTopic(name="t", partitions=[one])])

    def join(self, request: Any) -> JoinGroupResponse:
        if not request.member_id:
            required = ErrorCode.MEMBER_ID_REQUIRED
            return JoinGroupResponse(error_code=required, member_id="m", protocol_name="")
        self.generation += 1
        self.beat = ErrorCode.NONE
        wanted = request.protocols[0]
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_name=wanted.name,
            leader="m",
            member_id="m",
            members=[JoinGroupResponseMember(member_id="m", metadata=wanted.metadata)],
        )

    def commit(self, request: Any) -> OffsetCommitResponse:
        code = self.refusals.pop() if self.refusals else ErrorCode.NONE
        if code == ErrorCode.NONE:
            self.committed = request.topics[0].partitions[0].committed_offset
            self.commits.append(self.committed)
        one = OffsetCommitResponsePartition(partition_index=0, error_code=code)
        return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=[one])])


@asynccontextmanager
async def group_cluster() -> AsyncIterator[GroupCluster]:
    cluster = GroupCluster()
    await cluster.start(1)
    try:
        yield cluster
    finally:
        await cluster.kill(*cluster.servers)
