"""Fetch (API key 1): for consumers up to the high watermark, for replicas up to the log end.

In a fetch session (KIP-227) both sides send only changes: `core/fetch_sessions.py`.
A `read_committed` consumer gets the records up to the last stable offset, and the list of aborted
transactions among them: it skips their records itself (KIP-98).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from quorumlog.broker.fetching.core.fetch_sessions import (
    FINAL_EPOCH,
    FULL_EPOCH,
    NO_SESSION,
    FetchSession,
)
from quorumlog.broker.fetching.core.fetch_spec import FetchSpec
from quorumlog.broker.partitions.core.data_path import NO_REPLICA, FetchedPartition, PartitionFetch
from quorumlog.broker.responses.cluster_view import leader_hints
from quorumlog.broker.server.api import BrokerContext, Reply, answers
from quorumlog.broker.settings import RACK_SELECTOR
from quorumlog.clock import monotonic_ms
from quorumlog.invariants import some
from quorumlog.metadata_quorum.image.acls import AclOperation, AclResourceType
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.fetched_records import SINCE_VERSION, FetchedRecords
from quorumlog.wire.codec.identifiers import (
    UNKNOWN_OFFSET,
    BrokerId,
    Epoch,
    Offset,
    TopicId,
    TopicPartition,
)
from quorumlog.wire.codec.message import ZERO_UUID
from quorumlog.wire.codec.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from quorumlog.wire.codec.schemas import RequestHeader, response_to_send

TOPIC_IDS_SINCE: Final = 13
REPLICA_STATE_SINCE: Final = 15
NODE_ENDPOINTS_SINCE: Final = 16
RACKS_SINCE: Final = 11
READ_COMMITTED: Final = 1  # an isolation level
_OUTSIDE_EPOCHS: Final = frozenset({FINAL_EPOCH, FULL_EPOCH})
_MOVED: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


@answers(FetchRequest, 4, 18)
def handle(context: BrokerContext, header: RequestHeader, request: FetchRequest) -> Reply:
    """Answer at once, or when there are min_bytes, an error, or after max_wait_ms.

    Version 18 carries a follower's high watermark of the metadata log (KIP-1166): unused here.
    """
    now_ms, version = monotonic_ms(), header.api_version
    rights = None if context.access is None else _rights(context, version, request)
    is_limited = context.throttle is not None and _is_limited(context, header, request)
    spec = None if is_limited else _repeated(context, request, now_ms, rights)
    if spec is None:
        asked = _asked(context, version, request, rights)
        session = _session(context, version, request, asked, now_ms)
        if isinstance(session, ErrorCode):
            return FetchResponse(error_code=session)
        if session is None:
            spec = _spec(context, header, request, asked, None)
        else:
            _judge_again(context, session, rights)
            partitions = _of_session(context, session, now_ms, rights)
            spec = _spec(context, header, request, partitions, session)
            flat = [fetch for topic in request.topics for fetch in topic.partitions]
            # The bytes of a spec within a quota change with the quota.
            session.last_request, session.last_spec = None if is_limited else request, spec
            session.last_names = context.image.topic_names
            session.last_asked = [
                (session.partitions[one.key].fetch, numbers)
                for one, numbers in zip(asked, flat, strict=True)
            ]
    respond: Callable[[list[FetchedPartition]], FetchResponse | FetchedRecords]
    respond = partial(_response, context, header, spec)
    if is_limited:
        respond = partial(_metered, context, header, spec, request.session_epoch)
    return context.replicas.fetches.fetch(spec, respond, now_ms)


def _is_limited(context: BrokerContext, header: RequestHeader, request: FetchRequest) -> bool:
    """Whether a quota holds for the client; followers are exempt."""
    throttle = context.throttle
    if throttle is None or not throttle.limits_fetch(context, header):
        return False
    return _replica(header.api_version, request)[0] < 0


def _repeated(
    context: BrokerContext, request: FetchRequest, now_ms: int, rights: "_Rights | None"
) -> FetchSpec | None:
    """Return the last spec of the session, if its last request comes again with other numbers.

    `FetchDecoder` then passes the same object again. None: it has to be handled as another.
    """
    sessions = context.replicas.fetch_sessions
    session = sessions.find(request.session_id)
    if (
        session is None
        or session.last_request is not request
        or session.last_names is not context.image.topic_names
        or session.waiting is not None
        or session.epoch != request.session_epoch
        or request.forgotten_topics_data
        or session.judged_by != rights
    ):
        return None
    sessions.use(session, now_ms)
    spec: FetchSpec = session.last_spec
    unsettled, min_bytes = session.unsettled, request.min_bytes
    spec.min_bytes = min_bytes if min_bytes < spec.max_bytes else spec.max_bytes
    asked = session.last_asked
    for fetch, numbers in asked:
        fetch.fetch_offset = numbers.fetch_offset
        fetch.last_fetched_epoch = numbers.last_fetched_epoch
        fetch.log_start_offset = numbers.log_start_offset
        unsettled[fetch.key] = True
    if len(asked) == 1 and len(session.partitions) == 1 and not asked[0][0].error_code:
        spec.partitions = [asked[0][0]]
    else:
        spec.partitions = _of_session(context, session, now_ms, rights)
    return spec


def _session(
    context: BrokerContext,
    version: int,
    request: FetchRequest,
    asked: list[PartitionFetch],
    now_ms: int,
) -> FetchSession | ErrorCode | None:
    """Begin, continue or end a fetch session; None: a fetch without a session (KIP-227)."""
    sessions = context.replicas.fetch_sessions
    uses_topic_ids = version >= TOPIC_IDS_SINCE
    epoch = request.session_epoch
    if epoch in _OUTSIDE_EPOCHS:
        sessions.close(request.session_id)
        if epoch == FINAL_EPOCH:
            return None
        return sessions.open(
            now_ms,
            asked,
            uses_topic_ids=uses_topic_ids,
            is_privileged=_replica(version, request)[0] >= 0,
        )
    session = sessions.resume(now_ms, request.session_id, epoch, uses_topic_ids=uses_topic_ids)
    if isinstance(session, ErrorCode):
        return session
    forgotten = [
        (topic.topic_id if uses_topic_ids else topic.topic, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]
    return session if sessions.change(session, asked, forgotten) else None


def _of_session(
    context: BrokerContext, session: FetchSession, now_ms: int, rights: "_Rights | None"
) -> list[PartitionFetch]:
    """Return the partitions of the session that may have a new answer."""
    fetches = []
    for partition in session.candidates(now_ms):
        if partition.fetch.error_code is ErrorCode.UNKNOWN_TOPIC_ID:
            named = _named(context, partition.fetch, rights)
            context.replicas.fetch_sessions.change(session, [named], ())
        fetches.append(partition.fetch)
    return fetches


def _named(
    context: BrokerContext, fetch: PartitionFetch, rights: "_Rights | None"
) -> PartitionFetch:
    """Look up the topic's name again: it was missing when the session added the partition."""
    name = "" if fetch.topic_id is None else context.image.topic_names.get(fetch.topic_id, "")
    if not name:
        return fetch
    at = TopicPartition(name, fetch.topic_partition.partition)
    return replace(fetch, topic_partition=at, error_code=_read_error(context, rights, name))


class _Rights(NamedTuple):
    """The client of a fetch, and the ACLs: decisions for another client or by others are void."""

    principal: str
    client_host: str
    acls: object
    is_consumer: bool


def _rights(context: BrokerContext, version: int, request: FetchRequest) -> _Rights:
    """Return the rights to check, of a broker with an authorizer."""
    acls = some(context.access, "an authorizer decides").version
    is_consumer = _replica(version, request)[0] < 0
    return _Rights(context.principal, context.client_host, acls, is_consumer)


def _read_error(context: BrokerContext, rights: _Rights | None, name: str) -> ErrorCode:
    """Return the error of a consumer that may not read the topic; a follower may read all."""
    if (
        rights is None
        or not rights.is_consumer
        or context.may(AclOperation.READ, AclResourceType.TOPIC, name, api="Fetch")
    ):
        return ErrorCode.NONE
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _judge_again(context: BrokerContext, session: FetchSession, rights: _Rights | None) -> None:
    """Check the right to read each partition of the session, if the rights are others now."""
    if session.judged_by == rights:
        return
    session.judged_by = rights
    changed = []
    for partition in session.partitions.values():
        fetch = partition.fetch
        if fetch.error_code is not ErrorCode.UNKNOWN_TOPIC_ID:
            error_code = _read_error(context, rights, fetch.topic_partition.topic)
            if error_code is not fetch.error_code:
                changed.append(replace(fetch, error_code=error_code))
    context.replicas.fetch_sessions.change(session, changed, ())


def _replica(version: int, request: FetchRequest) -> tuple[BrokerId, int]:
    """Return the follower's id and broker epoch; -1 for a consumer."""
    state = request.replica_state
    if version >= REPLICA_STATE_SINCE and state is not None:
        return BrokerId(state.replica_id), state.replica_epoch
    return BrokerId(request.replica_id), -1


def _asked(
    context: BrokerContext, version: int, request: FetchRequest, rights: _Rights | None
) -> list[PartitionFetch]:
    partitions = []
    for topic in request.topics:
        name, topic_id, error_code = topic.topic, None, ErrorCode.NONE
        if version >= TOPIC_IDS_SINCE:
            topic_id = TopicId(topic.topic_id)
            name = context.image.topic_names.get(topic_id, "")
            error_code = ErrorCode.NONE if name else ErrorCode.UNKNOWN_TOPIC_ID
        if rights is not None and not error_code:
            error_code = _read_error(context, rights, name)
        partitions += [
            PartitionFetch(
                topic_partition=TopicPartition(name, fetch.partition),
                topic_id=topic_id,
                fetch_offset=Offset(fetch.fetch_offset),
                max_bytes=fetch.partition_max_bytes,
                leader_epoch=Epoch(fetch.current_leader_epoch),
                last_fetched_epoch=Epoch(fetch.last_fetched_epoch),
                log_start_offset=Offset(fetch.log_start_offset),
                error_code=error_code,
            )
            for fetch in topic.partitions
        ]
    return partitions


def _spec(
    context: BrokerContext,
    header: RequestHeader,
    request: FetchRequest,
    partitions: list[PartitionFetch],
    session: FetchSession | None,
) -> FetchSpec:
    version = header.api_version
    replica_id, replica_epoch = _replica(version, request)
    max_bytes = request.max_bytes
    if replica_id < 0:
        max_bytes = min(max_bytes, context.settings.fetch_max_bytes)
        if context.throttle is not None:
            max_bytes = context.throttle.fetch_bytes(context, header, max_bytes)
    knows_racks = version >= RACKS_SINCE and replica_id == NO_REPLICA
    goes_by_racks = context.settings.replica_selector_class == RACK_SELECTOR
    return FetchSpec(
        replica_id=replica_id,
        replica_epoch=replica_epoch,
        max_wait_ms=request.max_wait_ms,
        min_bytes=min(request.min_bytes, max_bytes),  # a response never has more than max_bytes
        max_bytes=max_bytes,
        partitions=partitions,
        account=context.account if replica_id < 0 else None,
        session=session,
        may_read_follower=knows_racks,
        near_rack=request.rack_id if knows_racks and goes_by_racks else "",
        is_read_committed=request.isolation_level == READ_COMMITTED and replica_id == NO_REPLICA,
        awaits_commits=goes_by_racks and replica_id >= 0,
        may_lend=context.may_send_files,
    )


def _metered(
    context: BrokerContext,
    header: RequestHeader,
    spec: FetchSpec,
    session_epoch: int,  # of the request
    fetched: list[FetchedPartition],
) -> FetchResponse:
    """Return the response within the client's quota, or an empty one, and then read again.

    As in Kafka, a fetch that is throttled begins no session.
    """
    session_id = NO_SESSION if spec.session is None else spec.session.session_id
    response = _whole_response(context, header, spec, fetched, session_id)
    size = sum(map(len, response_to_send(header, response)))
    throttle = some(context.throttle, "a metered fetch has a throttle")
    if not throttle.admit_fetch(context, header, size):
        return response
    if spec.session is None:
        return FetchResponse()
    if session_epoch in _OUTSIDE_EPOCHS:
        context.replicas.fetch_sessions.close(session_id)
        return FetchResponse()
    spec.session.take_back(spec.partitions)
    return FetchResponse(session_id=session_id)


def _response(
    context: BrokerContext, header: RequestHeader, spec: FetchSpec, fetched: list[FetchedPartition]
) -> FetchResponse | FetchedRecords:
    """Return the response to `spec`: nearly always one that needs no message objects."""
    session_id = NO_SESSION if spec.session is None else spec.session.session_id
    is_usual = header.api_version >= SINCE_VERSION
    if is_usual and len(fetched) == 1 and fetched[0].is_plain and not fetched[0].aborted:
        return FetchedRecords(session_id, (spec.partitions[0].key,), fetched)
    for found in fetched:
        if found.aborted or not found.is_plain:
            is_usual = False
    if is_usual:
        return FetchedRecords(session_id, [fetch.key for fetch in spec.partitions], fetched)
    return _whole_response(context, header, spec, fetched, session_id)


def _whole_response(
    context: BrokerContext,
    header: RequestHeader,
    spec: FetchSpec,
    fetched: list[FetchedPartition],
    session_id: int,
) -> FetchResponse:
    """Return the message of the fetched partitions, in the order of the spec."""
    response = FetchResponse(session_id=session_id)
    moved: set[TopicPartition] = set()
    topic: FetchableTopicResponse | None = None
    for fetch, found in zip(spec.partitions, fetched, strict=True):
        at, topic_id = fetch.topic_partition, fetch.topic_id or ZERO_UUID
        if topic is None or (topic.topic, topic.topic_id) != (at.topic, topic_id):
            topic = FetchableTopicResponse(topic=at.topic, topic_id=topic_id, partitions=[])
            response.responses.append(topic)
        # With an error, Kafka sends no offsets. Our follower needs the log start offset.
        is_silent = found.error_code is not ErrorCode.NONE and not spec.is_from_follower
        topic.partitions.append(_partition(at.partition, found, is_silent=is_silent))
        if found.error_code in _MOVED:
            moved.add(at)
    if moved and header.api_version >= NODE_ENDPOINTS_SINCE:
        response.node_endpoints = [
            NodeEndpoint(node_id=hint.broker_id, host=host, port=port, rack=hint.rack)
            for hint, (host, port) in leader_hints(context, moved)
        ]
    return response


def _aborted(found: FetchedPartition) -> list[AbortedTransaction] | None:
    if found.aborted is None:
        return None
    return [
        AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
        for one in found.aborted
    ]


def _partition(index: int, found: FetchedPartition, *, is_silent: bool) -> PartitionData:
    high_watermark = UNKNOWN_OFFSET if is_silent else found.high_watermark
    data = PartitionData(
        partition_index=index,
        error_code=found.error_code,
        high_watermark=high_watermark,
        last_stable_offset=UNKNOWN_OFFSET if is_silent else found.last_stable_offset,
        log_start_offset=UNKNOWN_OFFSET if is_silent else found.log_start_offset,
        aborted_transactions=_aborted(found),
        records=found.records or b"",
    )
    if found.preferred_replica != NO_REPLICA:
        data.preferred_read_replica = found.preferred_replica
    if found.diverging is not None:
        data.diverging_epoch = EpochEndOffset(
            epoch=found.diverging.epoch, end_offset=found.diverging.end_offset
        )
    if found.error_code in _MOVED:
        data.current_leader = LeaderIdAndEpoch(
            leader_id=found.leader_id, leader_epoch=found.leader_epoch
        )
    return data
