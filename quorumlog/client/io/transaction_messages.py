"""The requests of transactions as messages, in the versions that clients use.

AddPartitionsToTxn: up to v3, later versions are for brokers. InitProducerId: up to v5, before
KIP-939. Under transaction.version 2 (KIP-890): EndTxn and TxnOffsetCommit v5; before, v4.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from quorumlog.client.core.batch import ProducerIdentity
from quorumlog.client.core.topic_partitions import by_topic
from quorumlog.client.core.transaction_requests import (
    Abilities,
    AddOffsets,
    AddPartitions,
    Answer,
    CommitOffsets,
    EndTransaction,
    InitProducerId,
)
from quorumlog.client.io.cluster import Cluster, Purpose
from quorumlog.client.settings import ProducerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from quorumlog.wire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from quorumlog.wire.codec.messages.end_txn import EndTxnRequest
from quorumlog.wire.codec.messages.init_producer_id import InitProducerIdRequest
from quorumlog.wire.codec.messages.produce import ProduceRequest
from quorumlog.wire.codec.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from quorumlog.wire.io.connection import KafkaConnection

ADD_PARTITIONS_MAX: Final = 3
INIT_PRODUCER_ID_MAX: Final = 5
RECOVERS_SINCE: Final = 3  # InitProducerId with the producer's own id and epoch
END_IMPLICIT: Final = 5
OFFSETS_IMPLICIT: Final = 5
PRODUCE_IMPLICIT: Final = 12
TRANSACTION_VERSION: Final = "transaction.version"
IMPLICIT_SINCE_LEVEL: Final = 2


def abilities_of(connection: KafkaConnection) -> Abilities:
    """Return the transaction features of the connection's broker."""

    def reaches(api_key: int, version: int) -> bool:
        return version in connection.api_versions.get(api_key, range(0))

    is_implicit = (
        connection.finalized_features.get(TRANSACTION_VERSION, 0) >= IMPLICIT_SINCE_LEVEL
        and reaches(ProduceRequest.API_KEY, PRODUCE_IMPLICIT)
        and reaches(EndTxnRequest.API_KEY, END_IMPLICIT)
        and reaches(TxnOffsetCommitRequest.API_KEY, OFFSETS_IMPLICIT)
    )
    recovers = reaches(InitProducerIdRequest.API_KEY, RECOVERS_SINCE)
    return Abilities(recovers=recovers, is_implicit=is_implicit)


class TransactionMessages:
    """Sends requests to coordinators, each once. Raises KafkaError; definite if not sent."""

    def __init__(self, cluster: Cluster, settings: ProducerSettings) -> None:
        self._cluster: Final = cluster
        self._id: Final = settings.transactional_id or ""
        self._timeout_ms: Final = settings.transaction_timeout_ms

    async def init_producer_id(self, broker_id: int, request: InitProducerId) -> Answer:
        """Request a producer identity."""
        producer_id, producer_epoch = request.identity or (-1, -1)
        message = InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        response = await self._cluster.send(
            broker_id, message, purpose=Purpose.GROUP, version_max=INIT_PRODUCER_ID_MAX
        )
        identity = ProducerIdentity(response.producer_id, response.producer_epoch)
        return Answer(error_code=response.error_code, identity=identity)

    async def add_partitions(self, broker_id: int, request: AddPartitions) -> Answer:
        """Add partitions to the transaction."""
        topics = [
            AddPartitionsToTxnTopic(name=topic, partitions=partitions)
            for topic, partitions in by_topic(request.partitions).items()
        ]
        message = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=request.identity.producer_id,
            v3_and_below_producer_epoch=request.identity.producer_epoch,
            v3_and_below_topics=topics,
        )
        response = await self._cluster.send(
            broker_id, message, purpose=Purpose.GROUP, version_max=ADD_PARTITIONS_MAX
        )
        codes = {
            TopicPartition(topic.name, one.partition_index): one.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for one in topic.results_by_partition
        }
        return _answer(request.partitions, codes)

    async def add_offsets(self, broker_id: int, request: AddOffsets) -> Answer:
        """Add a group's offsets to the transaction."""
        message = AddOffsetsToTxnRequest(
            transactional_id=self._id,
            producer_id=request.identity.producer_id,
            producer_epoch=request.identity.producer_epoch,
            group_id=request.group_id,
        )
        response = await self._cluster.send(broker_id, message, purpose=Purpose.GROUP)
        return Answer(error_code=response.error_code)

    async def commit_offsets(self, broker_id: int, request: CommitOffsets) -> Answer:
        """Send offsets to the group's coordinator, to take effect when the transaction commits."""
        topics = []
        for topic, partitions in by_topic(request.offsets).items():
            entries = []
            for index in partitions:
                place = request.offsets[TopicPartition(topic, index)]
                entry = TxnOffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=place.offset,
                    committed_leader_epoch=place.leader_epoch,
                    committed_metadata=place.metadata,
                )
                entries.append(entry)
            topics.append(TxnOffsetCommitRequestTopic(name=topic, partitions=entries))
        group = request.group
        message = TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=group.group_id,
            producer_id=request.identity.producer_id,
            producer_epoch=request.identity.producer_epoch,
            generation_id=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            topics=topics,
        )
        version_max = OFFSETS_IMPLICIT if request.is_implicit else OFFSETS_IMPLICIT - 1
        response = await self._cluster.send(
            broker_id, message, purpose=Purpose.GROUP, version_max=version_max
        )
        codes = {
            TopicPartition(found.name, one.partition_index): one.error_code
            for found in response.topics
            for one in found.partitions
        }
        return _answer(request.offsets, codes)

    async def end(self, broker_id: int, request: EndTransaction) -> Answer:
        """Commit or abort the transaction."""
        message = EndTxnRequest(
            transactional_id=self._id,
            producer_id=request.identity.producer_id,
            producer_epoch=request.identity.producer_epoch,
            committed=request.committed,
        )
        version_max = END_IMPLICIT if request.is_implicit else END_IMPLICIT - 1
        response = await self._cluster.send(
            broker_id, message, purpose=Purpose.GROUP, version_max=version_max
        )
        identity = None
        if response.producer_id >= 0:
            identity = ProducerIdentity(response.producer_id, response.producer_epoch)
        return Answer(error_code=response.error_code, identity=identity)


def _answer(wanted: Iterable[TopicPartition], codes: Mapping[TopicPartition, int]) -> Answer:
    """Return a code for each wanted partition; UNKNOWN_SERVER_ERROR if `codes` has none."""
    missing = ErrorCode.UNKNOWN_SERVER_ERROR
    return Answer(partitions={name: codes.get(name, missing) for name in wanted})
