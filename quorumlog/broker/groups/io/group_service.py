"""The group coordinators of this broker, and the routing of group requests to them.

The coordinator of a group is the leader of the group's partition of `__consumer_offsets` (KIP-62).
The service is a LeadershipListener for these partitions, and an ImagePublisher for topics and
group settings.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from quorumlog.broker.coordination.core.effects import OwnEffect
from quorumlog.broker.coordination.driver.shard_driver import CoordinatorLog
from quorumlog.broker.coordination.io.event_loop_shards import EventLoopShards
from quorumlog.broker.groups.core import events
from quorumlog.broker.groups.core.consumer.topics import MatchJob, TopicDescription, Topics
from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.effects import MakeTarget, MatchTopics, VerifyTransaction
from quorumlog.broker.groups.core.requests import CompleteTransaction, GroupRequest
from quorumlog.broker.groups.core.rules import GROUP_RULES, GroupRules
from quorumlog.broker.groups.io.topic_expressions import topic_matcher
from quorumlog.broker.partitions.io.transaction_verifier import TransactionVerifier
from quorumlog.broker.partitions.log.verified_appends import TransactionProducer
from quorumlog.broker.settings import BrokerSettings
from quorumlog.clock import wall_clock_ms
from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC
from quorumlog.wire.codec.transaction_markers import TransactionMarker

EXPIRY_TIMEOUT_S: Final = 10.0
EXPIRY_POLL_S: Final = 0.005

T = TypeVar("T")


class JobThread:
    """One thread for all groups of a broker: its jobs run one after the other.

    It runs jobs too long for the event loop: docs/decisions/0032-group-threads.md
    """

    def __init__(self, name: str, on_fatal: Callable[[InvariantViolation], None]) -> None:
        """`on_fatal` gets an InvariantViolation when a job raises."""
        self._name: Final = name
        self._on_fatal: Final = on_fatal
        self._executor: ThreadPoolExecutor | None = None
        self._is_stopped = False

    def perform(self, run: Callable[[], T], done: Callable[[T], None], what: str) -> None:
        """Run the job in the thread, then call `done` with its result in the event loop."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        running = asyncio.get_running_loop().run_in_executor(self._executor, run)

        def ended(running: asyncio.Future[T]) -> None:
            if self._is_stopped or running.cancelled():
                return
            error = running.exception()
            if error is None:
                done(running.result())
            else:
                self._on_fatal(InvariantViolation(f"{what}: {error!r}"))

        running.add_done_callback(ended)

    def stop(self) -> None:
        """Cancel waiting jobs; drop the result of the running job."""
        self._is_stopped = True
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)


R = TypeVar("R")


class GroupService:
    """Routes group requests to the led partitions, and performs the effects of groups."""

    def __init__(
        self,
        *,
        replicas: CoordinatorLog,
        settings: BrokerSettings,
        verifier: TransactionVerifier,
        wall_ms: Callable[[], int] = wall_clock_ms,
        on_fatal: Callable[[InvariantViolation], None],
        rules: GroupRules = GROUP_RULES,
    ) -> None:
        self._settings, self._verifier = settings, verifier
        has_authorizer = bool(settings.authorizer_class_name)
        self._topics: Final = Topics(topic_matcher(), has_authorizer=has_authorizer)
        self._targets: Final = JobThread("group-targets", on_fatal)
        self._expressions: Final = JobThread("group-expressions", on_fatal)
        self._shards: Final[EventLoopShards[GroupCoordinator]] = EventLoopShards(
            OFFSETS_TOPIC,
            partitions=settings.offsets_topic_num_partitions,
            replicas=replicas,
            new_coordinator=partial(GroupCoordinator, settings, topics=self._topics, rules=rules),
            load_buffer_bytes=settings.offsets_load_buffer_size,
            on_fatal=on_fatal,
            perform_own=self._perform_own,
            wall_ms=wall_ms,
            shard=rules.shard,
        )
        self.became_leader: Final = self._shards.became_leader
        self.resigned: Final = self._shards.resigned
        self.partition_of: Final = self._shards.partition_of
        self.coordinator: Final = self._shards.coordinator
        self.coordinators: Final = self._shards.coordinators
        self.check_progress: Final = self._shards.check_progress
        self.advance: Final = self._shards.advance

    async def expire(self) -> dict[str, int]:
        """Delete all expired offsets; return their number by group, once that is committed.

        Raises TimeoutError after EXPIRY_TIMEOUT_S: the tombstones cannot be committed.
        """
        before = left = self._offset_counts()
        polls = int(EXPIRY_TIMEOUT_S / EXPIRY_POLL_S)
        self._shards.advance(0)
        for _ in range(polls):
            if any(one.is_expiring for one in self._loaded()):
                await asyncio.sleep(EXPIRY_POLL_S)
                continue
            known, left = left, self._offset_counts()
            if left == known:
                counts = {group: count - left.get(group, 0) for group, count in before.items()}
                return {group: count for group, count in counts.items() if count > 0}
            self._shards.advance(0)  # again: one clean-up deletes up to a limit
        raise TimeoutError

    def _loaded(self) -> list[GroupCoordinator]:
        return [one for one in self.coordinators() if not isinstance(one, ErrorCode)]

    def _offset_counts(self) -> dict[str, int]:
        """Return the number of committed offsets by group."""
        return {
            group: len(offsets)
            for coordinator in self._loaded()
            for group, offsets in coordinator.committed.offsets.items()
        }

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        """Apply an image: the offsets topic's partition count, topics and group settings."""
        self._shards.count_partitions(image)
        deleted = tuple(sorted(delta.deleted_topics))
        if deleted:
            self._shards.feed_all(events.TopicsDeleted(topics=deleted))
        for group_id in delta.group_configs:
            self._topics.configure(group_id, image.group_configs.get(group_id, {}))
        self._note_topics(delta, image)

    def _note_topics(self, delta: ClusterDelta, image: ClusterImage) -> None:
        """Notify consumer groups of topics that were created, deleted or got partitions."""
        changed: dict[str, TopicDescription | None] = {}
        for name in {where.topic for where in delta.partitions}.union(delta.deleted_topics):
            topic, found = image.topics.get(name), None
            if topic is not None:
                found = TopicDescription(topic.topic_id, len(topic.partitions))
            if found != self._topics.by_name.get(name):
                changed[name] = found
        if changed:
            self._topics.change(image.end_offset, changed)
            self._shards.feed_all(events.TopicsChanged(names=changed.keys()))

    def ask(self, request: GroupRequest[R]) -> asyncio.Future[R]:
        """Return the response of the group's coordinator; NOT_COORDINATOR: not on this broker."""
        return self._shards.ask(self.partition_of(request.group_id), request)

    def end_transaction(
        self, topic_partition: TopicPartition, marker: TransactionMarker, transaction_version: int
    ) -> asyncio.Future[ErrorCode]:
        """Write the marker of a transaction in a partition of `__consumer_offsets`.

        The Future completes with NONE once the marker is committed and its offsets are visible
        (KAFKA-17507), or with an error of WriteTxnMarkers. A repeated marker does no harm.
        """
        request = CompleteTransaction(marker=marker, transaction_version=transaction_version)
        return self._shards.ask(topic_partition, request)

    def stop(self) -> None:
        """Drop all groups; answer every open request NOT_COORDINATOR."""
        self._shards.stop()
        self._targets.stop()
        self._expressions.stop()

    def _perform_own(self, topic_partition: TopicPartition, effect: OwnEffect) -> None:
        feed = partial(self._shards.feed, topic_partition)
        match effect:
            case VerifyTransaction():
                self._verify(topic_partition, effect, feed)
            case MakeTarget(job=job):
                self._targets.perform(
                    job.run,
                    lambda target: feed(events.TargetMade(job=job, target=target)),
                    f"the target of {job.group_id}",
                )
            case MatchTopics(job=match):
                matched = partial(self._note_matched, match)
                what = f"the topics that match {match.expression!r}"
                self._expressions.perform(match.run, matched, what)
            case _:
                raise InvariantViolation(f"not an effect of groups: {effect}")

    def _note_matched(self, job: MatchJob, matching: frozenset[str]) -> None:
        self._topics.note_matched(job, matching)
        self._shards.feed_all(events.TopicsMatched(expression=job.expression))

    def _verify(
        self,
        topic_partition: TopicPartition,
        effect: VerifyTransaction,
        feed: Callable[[events.Event], None],
    ) -> None:
        """Verify a commit's transaction, or add the partition to it, as the request requires."""
        request = effect.request

        def verified(error_code: ErrorCode) -> None:
            feed(effect.verified(error_code))

        if not (request.adds or self._settings.transaction_partition_verification_enable):
            verified(ErrorCode.NONE)  # as Kafka: the producer has sent AddOffsetsToTxn itself
            return
        producer = TransactionProducer(
            request.transactional_id, request.producer_id, request.producer_epoch
        )
        answer = self._verifier.verify(producer, [topic_partition], adds=request.adds)
        answer.add_done_callback(lambda answer: verified(answer.result()[topic_partition]))
