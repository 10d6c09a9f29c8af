"""The settings of a transaction coordinator: Kafka's names (dots: underscores) and defaults."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """The first four are broker settings; the last two are not Kafka's.

    `abort_interval_ms` (`transaction.abort.timed.out.transaction.cleanup.interval.ms`): a
    transaction that exceeds its timeout is aborted at the next multiple of it. `hold_max_ms`
    (`add.partitions.to.txn.retry.backoff.ms`): how long an addition waits while its id is busy.
    `retry_backoff_ms`: the delay before a marker is sent again, or before a refused change of the
    coordinator itself is retried.
    """

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    abort_interval_ms: int = 1
    hold_max_ms: int = 20
    retry_backoff_ms: int = 20
    retry_backoff_max_ms: int = 1000
