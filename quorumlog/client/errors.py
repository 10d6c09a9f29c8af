"""KafkaError, and whether a failed operation may have had an effect.

An error is `definite` if the operation certainly had no effect in the cluster, and never will have.
Three rules, without guesses:

1. If no byte of a request was written to a socket, the error is definite: no broker received it.
2. If a request was written and its response never came (connection lost, timed out), the error is
   indefinite, for ever: the request may be executed now, later, or may have been executed already.
3. If the response is an error, it is definite only if brokers send this error before they change
   anything (`DEFINITE`). NOT_LEADER_OR_FOLLOWER is not in that set: a leader that is deposed
   between append and acknowledgement sends it for a record that may survive (KAFKA-13574). Nor is
   NOT_CONTROLLER: a controller that is deposed before the commit sends it.

The error of several attempts is definite only if EVERY attempt's error was. A definite
OUT_OF_ORDER_SEQUENCE_NUMBER after a lost first attempt is thus indefinite: the first attempt may
have been written.

The chaos lab writes `fail` for a definite error and `info` for any other. A wrong `fail` would
accuse the cluster of an aborted read; a wrong `info` only makes the checker's work harder.
"""

from collections.abc import Mapping
from typing import Final

from quorumlog.wire.codec.error_codes import RETRIABLE, ErrorCode, known
from quorumlog.wire.codec.identifiers import TopicPartition

DEFINITE: Final = frozenset(
    {
        # Produce: refused by checks before the append.
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_RECORD,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        # Any request: refused before its handler runs.
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.DUPLICATE_VOTER,
        ErrorCode.VOTER_NOT_FOUND,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        # Administration: refused by validation, before a record is written.
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.TOPIC_DELETION_DISABLED,
        # Groups: the caller is not, or no longer, a member.
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
    }
)
"""Errors that a broker sends only before it changes anything: the attempt had no effect.

UNKNOWN_TOPIC_OR_PARTITION is missing on purpose: a produce request that waits for replicas while
the topic is deleted gets it. From Metadata, before a request is sent, it is definite by rule 1.
"""

FATAL: Final = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""Errors after which this client object is unusable: close it."""

DENIED: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""Errors of a client without a right; the same call succeeds once an ACL allows it."""

ABORTABLE: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_ABORTABLE})
"""Errors that end a transaction but not its producer (KIP-588, KIP-890)."""


SETTINGS: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.FENCED_INSTANCE_ID: "another member has this group_instance_id",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "see group.max.size of the brokers",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "set partition_assignment_strategy, or group_protocol,"
    " as the other members",
    ErrorCode.INVALID_REQUIRED_ACKS: 'set acks to "all", 1 or 0',
    ErrorCode.INVALID_SESSION_TIMEOUT: "set session_timeout_ms: the brokers have limits,"
    " group.min.session.timeout.ms and group.max.session.timeout.ms",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "lower transaction_timeout_ms: the limit of the brokers"
    " is transaction.max.timeout.ms",
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than the topic's"
    " min.insync.replicas",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "see offset.metadata.max.bytes of the brokers",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "set group_remote_assignor",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "set compression_type",
}
"""The settings to change after errors of brokers that do not name them."""


class KafkaError(Exception):
    """A failed operation. Its text names a setting to change, if the code has one in `SETTINGS`.

    code: the broker's error code; REQUEST_TIMED_OUT, NETWORK_EXCEPTION, BROKER_NOT_AVAILABLE and
        similar codes if the client itself gave up.
    definite: the operation certainly had no effect, and never will (see the module's docstring).
    """

    def __init__(self, code: int, message: str = "", *, definite: bool) -> None:
        self.code: Final = known(code)
        self.message: Final = message
        self.definite: Final = definite
        hint = SETTINGS.get(self.code)
        text = f"{message} ({hint})" if message and hint else message or hint
        super().__init__(f"{self.code.name}: {text}" if text else self.code.name)

    def again(self, *, definite: bool | None = None) -> "KafkaError":
        """Return an equal error to raise: each raise needs its own traceback."""
        definite = self.definite if definite is None else definite
        return KafkaError(self.code, self.message, definite=definite)

    def __reduce__(self) -> tuple[object, ...]:
        """Copy or pickle its attributes: the constructors take other arguments than `args` has."""
        return _with_text, (type(self), self.args), vars(self)

    @property
    def retriable(self) -> bool:
        """True if the same call may succeed later."""
        return self.code in RETRIABLE

    @property
    def passing(self) -> bool:
        """True if the same call may succeed later, or when a broker can be reached again."""
        return self.retriable or self.code is ErrorCode.BROKER_NOT_AVAILABLE

    @property
    def abortable(self) -> bool:
        """True if the transaction must be aborted; the producer stays usable."""
        return self.code in ABORTABLE

    @property
    def fatal(self) -> bool:
        """True if the client object is unusable."""
        return self.code in FATAL


def _with_text(kind: type[KafkaError], text: tuple[object, ...]) -> KafkaError:
    return kind.__new__(kind, *text)


class CallableError(KafkaError):
    """The user's callable of a setting has raised, or returned an illegal result.

    setting: the name of the setting: "value_serializer", "partitioner", ... `__cause__` is the
        exception of the callable. The error is definite: the record was not sent.
    """

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, f"{setting} {message}", definite=True)
        self.setting: Final = setting


class DeserializationError(CallableError):
    """A deserializer has raised. The position of the partition stays at this record.

    Every other `poll` raises the error again, until `seek(partition, offset + 1)` skips the record.
    `data`: the bytes of the key or the value, by `setting`. Source: RecordDeserializationException.
    """

    def __init__(
        self, setting: str, cause: Exception, at: tuple[TopicPartition, int], data: bytes
    ) -> None:
        self.topic_partition, self.offset = at
        self.data: Final = data
        message = (
            f"failed for {self.topic_partition} at offset {self.offset}: {cause!r};"
            " seek to the next offset to skip the record"
        )
        super().__init__(setting, message)
        self.__cause__ = cause


class PositionLost(KafkaError):
    """A consumer's position that its log does not have, with auto_offset_reset="none".

    `poll` raises it once; the partition waits for a `seek`. `offset`: the position, -1 if there was
    none yet. `topic_id`: of the topic that a `seek` will read; another id than before if the topic
    was created again. `truncated_to`: the offset at which the log diverges from the records read
    before (KIP-320); None if it does not, or if that is unknown.
    """

    def __init__(
        self,
        message: str,
        topic_partition: TopicPartition,
        *,
        offset: int,
        topic_id: bytes,
        truncated_to: int | None = None,
    ) -> None:
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, message, definite=True)
        self.topic_partition: Final = topic_partition
        self.offset: Final = offset
        self.topic_id: Final = topic_id
        self.truncated_to: Final = truncated_to


class TopicDenied(KafkaError):
    """The user lacks a right on `topic`; definite. Source: TopicAuthorizationException."""

    def __init__(self, topic: str, message: str) -> None:
        super().__init__(ErrorCode.TOPIC_AUTHORIZATION_FAILED, message, definite=True)
        self.topic: Final = topic

    def again(self, *, definite: bool | None = None) -> "TopicDenied":
        """Return an equal error to raise; it is always definite."""
        del definite
        return TopicDenied(self.topic, self.message)


class TransactionError(KafkaError):
    """A transaction that cannot be committed: abortable, or fatal for its producer.

    The producer's state decides between the two, not the code alone (KIP-1050).
    """

    def __init__(self, code: int, message: str = "", *, definite: bool, fatal: bool) -> None:
        super().__init__(code, message, definite=definite)
        self._is_fatal: Final = fatal

    def again(self, *, definite: bool | None = None) -> "TransactionError":
        """Return an equal error to raise."""
        definite = self.definite if definite is None else definite
        return TransactionError(self.code, self.message, definite=definite, fatal=self._is_fatal)

    @property
    def retriable(self) -> bool:
        """False: first the transaction must be aborted."""
        return False

    @property
    def abortable(self) -> bool:
        """True if the transaction must be aborted; the producer stays usable."""
        return not self._is_fatal

    @property
    def fatal(self) -> bool:
        """True if the producer is unusable."""
        return self._is_fatal


class AssignorError(KafkaError):
    """An assignor that failed in the group's leader, or whose assignment is incomplete or wrong.

    No member's partitions have changed. The next `poll` joins again and runs the assignor again.
    """

    def __init__(self, assignor: str, why: str) -> None:
        """`assignor`: its name. `why`: a predicate, such as "raised ValueError()"."""
        self._given: Final = assignor, why
        message = f"the assignor {assignor!r} {why}"
        super().__init__(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message, definite=True)

    def again(self, *, definite: bool | None = None) -> "AssignorError":
        """Return an equal error to raise; it is always definite."""
        del definite
        return AssignorError(*self._given)


def answered(code: int, message: str = "", *, earlier_definite: bool = True) -> KafkaError:
    """Return the error for a response with `code`; `earlier_definite`: of earlier attempts."""
    return KafkaError(code, message, definite=earlier_definite and known(code) in DEFINITE)


def of_topic(code: int, topic: str, message: str, *, definite: bool = True) -> KafkaError:
    """Return the error for a response with `code` about a topic; TopicDenied is always definite."""
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return TopicDenied(topic, message)
    return KafkaError(code, message, definite=definite)


def denied(code: int, resource: str, right: str) -> str:
    """Return the message of an error about `resource`: for `DENIED`, with the missing right.

    A broker does not send the right that it has missed: `right` is the one of the caller's request.
    """
    if known(code) not in DENIED:
        return resource
    return f"the user may lack {right} on {resource}"
