"""Transactions, by requests to their coordinators and to partition leaders (KIP-664)."""

from collections.abc import Iterable
from functools import partial
from typing import Final

from quorumlog.client import descriptions as about
from quorumlog.client.admin import topics
from quorumlog.client.admin.asker import Answers, Asker
from quorumlog.client.checks import checked_all, checked_names, checked_partitions
from quorumlog.client.core.topic_partitions import by_topic
from quorumlog.client.core.transaction_requests import CoordinatorType
from quorumlog.client.errors import KafkaError, answered
from quorumlog.client.io.cluster import check
from quorumlog.client.io.coordinator import find_coordinator
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.describe_transactions import DescribeTransactionsRequest
from quorumlog.wire.codec.messages.list_transactions import ListTransactionsRequest
from quorumlog.wire.codec.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

PATTERNS_SINCE: Final = 2  # version of ListTransactions
_REFUSED_PATTERN: Final = (  # the response has no error message field
    "RE2 does not take the pattern, or the broker is a quorumlog without google-re2, its extra re2"
)


class TransactionAdmin:
    """Lists and describes transactions, and aborts a transaction that its coordinator has lost."""

    def __init__(self, asker: Asker) -> None:
        self._asker: Final = asker

    async def list(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        pattern: str | None = None,
    ) -> list[about.TransactionListing]:
        """Return the transactional ids that all brokers coordinate, sorted by name.

        `states` (Kafka's names), `producer_ids`: only transactions with these; (): with any.
        `pattern`: only ids that match this RE2 expression as a whole (KIP-1152). Raises
        INVALID_REGULAR_EXPRESSION if RE2 refuses the pattern, or if a quorumlog broker has no extra
        `re2`; UNSUPPORTED_VERSION if a broker does not support patterns.
        """
        if pattern is not None and not isinstance(pattern, str):
            raise TypeError(f"a pattern is a str, not {pattern!r}")
        request = ListTransactionsRequest(
            state_filters=checked_names(states, "states"),
            producer_id_filters=checked_all(producer_ids, int, "producer ids"),
            transactional_id_pattern=pattern,
        )
        about_pattern = "" if pattern is None else f", ids that match {pattern!r}"
        version_min = 0 if pattern is None else PATTERNS_SINCE
        found = {}
        for broker_id in (await topics.view(self._asker, ())).nodes:

            async def attempt(broker_id: int = broker_id) -> list[about.TransactionListing]:
                response = await self._asker.request(
                    request, broker_id=broker_id, version_min=version_min
                )
                what = f"ListTransactions of broker {broker_id}{about_pattern}"
                if response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
                    what = f"{what} ({_REFUSED_PATTERN})"
                check(response.error_code, what)
                if response.unknown_state_filters:
                    unknown = ", ".join(response.unknown_state_filters)
                    raise ValueError(f"no transaction has a state of this name: {unknown}")
                return [
                    about.TransactionListing(
                        transactional_id=one.transactional_id,
                        state=one.transaction_state,
                        producer_id=one.producer_id,
                        coordinator_id=broker_id,
                    )
                    for one in response.transaction_states
                ]

            for one in await self._asker.retry(attempt, changes=False):
                found[one.transactional_id] = one
        return [found[name] for name in sorted(found)]

    async def describe(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, about.TransactionDescription]:
        """Describe each id. Raises TRANSACTIONAL_ID_NOT_FOUND if one does not exist."""
        return {
            name: await self._asker.retry(partial(self._describe, name), changes=False)
            for name in checked_names(transactional_ids, "transactional_ids")
        }

    async def _describe(self, name: str) -> about.TransactionDescription:
        coordinator_id = await find_coordinator(
            self._asker.cluster, CoordinatorType.TRANSACTION, name
        )
        request = DescribeTransactionsRequest(transactional_ids=[name])
        [found] = (await self._asker.request(request, broker_id=coordinator_id)).transaction_states
        check(found.error_code, name)
        return about.TransactionDescription(
            state=found.transaction_state,
            coordinator_id=coordinator_id,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            timeout_ms=found.transaction_timeout_ms,
            start_ms=found.transaction_start_time_ms,
            partitions=tuple(
                TopicPartition(topic.topic, index)
                for topic in found.topics
                for index in topic.partitions
            ),
        )

    async def abort(
        self,
        partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
    ) -> None:
        """Write an abort marker through the leader of a partition, without a coordinator.

        Only for a hanging transaction, which no coordinator will end: it blocks `read_committed`
        consumers. `describe_producers` returns the three numbers. Raises INVALID_PRODUCER_EPOCH,
        TRANSACTION_COORDINATOR_FENCED.
        """

        async def ask(broker_id: int, part: list[TopicPartition]) -> Answers[None]:
            marker = WritableTxnMarker(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
                topics=[
                    WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
                    for name, indexes in by_topic(part).items()
                ],
            )
            request = WriteTxnMarkersRequest(markers=[marker])
            response = await self._asker.request(request, broker_id=broker_id)
            answers: dict[TopicPartition, KafkaError | None] = {}
            for of_producer in response.markers:
                for topic in of_producer.topics:
                    for one in topic.partitions:
                        name = TopicPartition(topic.name, one.partition_index)
                        is_done = one.error_code == ErrorCode.NONE
                        answers[name] = None if is_done else answered(one.error_code, str(name))
            return answers

        await self._asker.ask_leaders(checked_partitions([partition]), ask, changes=True)
