"""The only error of the client's API, and what a caller may conclude from it.

`definite` answers the question that decides whether a failed operation may still take effect:
is it certain that the cluster did not do it, and never will? Three rules, none of them a guess:

1. An operation of which no byte was written to a socket is definite: no broker received it.
2. A request that was written and whose answer never came (connection lost, timed out) is
   indefinite, for ever: it may be executed now, later, or may have been executed already.
3. A request that was answered with an error is definite only if the broker answers that error
   before it changes anything (`DEFINITE`). NOT_LEADER_OR_FOLLOWER is not among them: a leader that
   is deposed between append and acknowledgement answers it for a record that may survive
   (KAFKA-13574). Nor is NOT_CONTROLLER: a controller deposed before commit answers it.

An operation that was tried several times is definite only if EVERY attempt was. A definite
OUT_OF_ORDER_SEQUENCE_NUMBER after a lost first attempt is thus indefinite: the first may stand.

The chaos lab writes `fail` for a definite error and `info` for any other. A wrong `fail` would
accuse the cluster of an aborted read; a wrong `info` only makes the checker's work harder.
"""

from typing import Final

from quorumlog.wire.codec.error_codes import RETRIABLE, ErrorCode

DEFINITE: Final = frozenset(
    {
        # Produce: refused by checks that come before the append.
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
        # Any request: refused at the door.
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
        # Groups: the coordinator does not know the caller (any more).
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
"""Errors that a broker answers only before it changes anything, so that the attempt left no trace.

UNKNOWN_TOPIC_OR_PARTITION is missing on purpose: a produce that waits for its replicas while the
topic is deleted is answered with it. From Metadata, before anything is sent, it is definite by rule
1.
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
"""Errors after which this client object can do nothing more: close it."""

ABORTABLE: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_ABORTABLE})
"""Errors that end a transaction but not its producer (KIP-588, KIP-890)."""


class KafkaError(Exception):
    """An operation failed.

    code: what the broker answered; REQUEST_TIMED_OUT, NETWORK_EXCEPTION, BROKER_NOT_AVAILABLE and
        the like when the client itself gave up.
    retriable: the same call may succeed later.
    passing: retriable, or no broker could be reached.
    abortable: the transaction must be aborted; the producer may go on.
    fatal: the client object is of no further use.
    definite: it certainly had no effect and never will (see the module's docstring).
    """

    def __init__(self, code: int, message: str = "", *, definite: bool) -> None:
        self.code: Final = known(code)
        self.message: Final = message
        self.definite: Final = definite
        super().__init__(f"{self.code.name}: {message}" if message else self.code.name)

    def again(self, *, definite: bool | None = None) -> "KafkaError":
        """Return an equal error to raise: a traceback belongs to one raise."""
        definite = self.definite if definite is None else definite
        return KafkaError(self.code, self.message, definite=definite)

    @property
    def retriable(self) -> bool:
        """The same call may succeed later."""
        return self.code in RETRIABLE

    @property
    def passing(self) -> bool:
        """The same call may succeed later, or when a broker can be reached again."""
        return self.retriable or self.code is ErrorCode.BROKER_NOT_AVAILABLE

    @property
    def abortable(self) -> bool:
        """The transaction must be aborted; the producer may go on."""
        return self.code in ABORTABLE

    @property
    def fatal(self) -> bool:
        """The client object is of no further use."""
        return self.code in FATAL


class TransactionError(KafkaError):
    """A transaction cannot be committed: abortable, unless its producer can do nothing more.

    The state of the producer decides which, not the code alone (KIP-1050).
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
        """The transaction must be aborted; the producer may go on."""
        return not self._is_fatal

    @property
    def fatal(self) -> bool:
        """The producer is of no further use."""
        return self._is_fatal


def known(code: int) -> ErrorCode:
    """Name a code from the wire; one that this version does not know is UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def answered(code: int, message: str = "", *, earlier_definite: bool = True) -> KafkaError:
    """Make the error for a request that was answered with `code`, after earlier attempts."""
    return KafkaError(code, message, definite=earlier_definite and known(code) in DEFINITE)
