"""Mutants for real processes alone: `quorumlog chaos run --mutant` names them."""

import random
import time
from collections.abc import Sequence
from typing import Final

from quorumlog import clock
from quorumlog.broker.groups.core.classic_groups import ClassicGroups
from quorumlog.broker.partitions.core.producer_state import Check, ProducerStates
from quorumlog.broker.partitions.log.offset_lookup import LATEST
from quorumlog.chaos.mutants.mutant import Mutants
from quorumlog.chaos.mutants.parts import REAL_PARTS, ChangedResponses, is_from_consumer
from quorumlog.chaos.mutants.replication import CommitsAlone
from quorumlog.storage.core.retention import Retention, RetentionLimits, SegmentFacts
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import Buffer, Sendable, contents
from quorumlog.wire.codec.messages.fetch import FetchRequest, FetchResponse
from quorumlog.wire.codec.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from quorumlog.wire.codec.records import BatchHeader

PROCESSES: Final = Mutants("replication", is_simulated=False)


@PROCESSES.breaks("a leader acknowledges records that no follower has; pause_kill shows the loss")
class _HighWatermark(CommitsAlone):
    """The node does not check itself: it runs on, so that the history must show the loss."""


@PROCESSES.breaks(
    "the same, but the node detects the violation: its process ends by itself", sound=REAL_PARTS
)
class _BrokenInvariant(CommitsAlone):
    """Its exit status is 70."""


@PROCESSES.breaks("a resent batch is appended twice; idempotent_send shows the duplicate")
class _ForgetsProducers(ProducerStates):
    """Idempotence (KIP-98) is off: a batch resent after a late response is in the log twice."""

    def check(self, batch: BatchHeader) -> Check:
        del batch
        return Check(ErrorCode.NONE)


@PROCESSES.breaks("a fetch response has a corrupt byte; consumers detect it by the checksum")
class _SpoilsReads(ChangedResponses):
    """One of twenty responses to consumers. The log is intact, and so are followers' copies."""

    api_key = FetchRequest.API_KEY
    _SHARE: Final = 0.05

    def __init__(self) -> None:
        self._rng: Final = random.Random(1)  # noqa: S311 - no secret

    def changed(self, request: FetchRequest, response: FetchResponse) -> FetchResponse:
        for topic in response.responses if is_from_consumer(request) else ():
            for partition in topic.partitions:
                if partition.records and self._rng.random() < self._SHARE:
                    spoilt = _joined(partition.records)
                    spoilt[-1] ^= 1
                    partition.records = bytes(spoilt)
        return response


def _joined(records: Buffer | Sequence[Sendable]) -> bytearray:
    chunks = [records] if isinstance(records, Buffer) else records
    return bytearray(b"".join(contents(chunks)))


@PROCESSES.breaks("every second ListOffsets response for a log's end is 7 too low")
class _LowEnds(ChangedResponses):
    """A log end of 1,297 in one response contradicts 1,290 in a later one."""

    api_key = ListOffsetsRequest.API_KEY
    _TOO_LOW_BY: Final = 7

    def __init__(self) -> None:
        self._responses = 0

    def changed(
        self, request: ListOffsetsRequest, response: ListOffsetsResponse
    ) -> ListOffsetsResponse:
        timestamps = {
            (topic.name, partition.partition_index): partition.timestamp
            for topic in request.topics
            for partition in topic.partitions
        }
        self._responses += 1
        for topic in response.topics:
            for partition in topic.partitions:
                is_of_end = timestamps[topic.name, partition.partition_index] == LATEST
                if is_of_end and self._responses % 2 == 0 and partition.offset > self._TOO_LOW_BY:
                    partition.offset -= self._TOO_LOW_BY
        return response


@PROCESSES.breaks("consumers receive no records for 12 s after a node's start: late, not lost")
class _LateReads(ChangedResponses):
    """The verdict may be valid, but names `late-read` and for how long readers received nothing."""

    api_key = FetchRequest.API_KEY
    _SILENT_S: Final = 12.0

    def __init__(self) -> None:
        self._started_s: Final = time.monotonic()

    def changed(self, request: FetchRequest, response: FetchResponse) -> FetchResponse:
        is_silent = time.monotonic() - self._started_s < self._SILENT_S
        for topic in response.responses if is_silent and is_from_consumer(request) else ():
            for partition in topic.partitions:
                partition.records = b""
        return response


@PROCESSES.breaks("retention goes by the machine's clock: an advance by days deletes nothing")
class _IgnoresAdvances(Retention):
    def has_expired(self, segment: SegmentFacts, limits: RetentionLimits, wall_ms: int) -> bool:
        return super().has_expired(segment, limits, wall_ms - clock.advances().ahead_ms)


@PROCESSES.breaks("an advance of the wall clock ends the sessions of all members")
class _AgesSessions(ClassicGroups):
    def shift_deadlines(self, by_ms: int) -> None:
        """Leave the deadlines where they are."""
