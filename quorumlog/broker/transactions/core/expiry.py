"""The expiry of transactional ids that are not used any more."""

from typing import Final

from quorumlog.broker.settings import BrokerSettings
from quorumlog.broker.transactions.core.outbox import TransactionOutbox
from quorumlog.broker.transactions.core.states import WITHOUT_TRANSACTION, TransactionState
from quorumlog.broker.transactions.core.transaction import Transaction


class Expiry:
    """Expires only ids without a transaction; an open transaction ends first, by its timeout."""

    def __init__(self, settings: BrokerSettings, outbox: TransactionOutbox) -> None:
        self._settings: Final = settings
        self._outbox: Final = outbox
        self._expired: list[str] = []

    def deadline_ms(self, transaction: Transaction) -> int:
        """Return when the id expires, unless it changes."""
        lasts_ms = self._settings.transactional_id_expiration_ms
        return transaction.metadata.last_update_ms + lasts_ms

    def maybe_expire(self, transaction: Transaction, now_ms: int) -> None:
        """Expire the id with the next `write_tombstones`, if its deadline has passed."""
        is_idle = transaction.state in WITHOUT_TRANSACTION and transaction.pending is None
        if is_idle and self.deadline_ms(transaction) <= now_ms:
            transaction.begin(TransactionState.DEAD)
            self._expired.append(transaction.transactional_id)

    def write_tombstones(self) -> None:
        """Write the tombstones of expired ids; if the write is refused, a later tick retries."""
        if self._expired:
            expired, self._expired = self._expired, []
            self._outbox.write_tombstones(expired, lambda _now_ms, _error_code: None)
