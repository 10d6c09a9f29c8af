"""What a transaction coordinator goes by: Kafka's names (dots: underscores) and defaults."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """The first two are settings of a broker.

    So is `abort_interval_ms`, there `transaction.abort.timed.out.transaction.cleanup.interval.ms`:
    a transaction that lasts too long is aborted at the next multiple of it. So is `hold_max_ms`,
    there `add.partitions.to.txn.retry.backoff.ms`: how long an addition waits while its id is busy.
    The others are not Kafka's: how long before a marker is sent again, or a
    change of our own that was refused is tried again.
    """

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    abort_interval_ms: int = 1
    hold_max_ms: int = 20
    retry_backoff_ms: int = 20
    retry_backoff_max_ms: int = 1000
