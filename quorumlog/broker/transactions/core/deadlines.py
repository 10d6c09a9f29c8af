"""The deadlines of transactional ids, in order of time."""

from typing import Final

from sortedcontainers import SortedSet

from quorumlog.broker.transactions.core.outbox import TransactionOutbox
from quorumlog.broker.transactions.core.settings import TransactionSettings
from quorumlog.broker.transactions.core.states import WITHOUT_TRANSACTION, TransactionState
from quorumlog.broker.transactions.core.transaction import Transaction


class Expiry:
    """Expires only ids without a transaction; an open transaction ends first, by its timeout."""

    def __init__(self, settings: TransactionSettings, outbox: TransactionOutbox) -> None:
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


class Deadlines:
    """Invariant: an id has at most one deadline. No method walks over all ids."""

    def __init__(self) -> None:
        self._in_order: SortedSet[tuple[int, str]] = SortedSet()
        self._of: dict[str, int] = {}

    @property
    def next_ms(self) -> int | None:
        """The earliest deadline, else None."""
        return self._in_order[0][0] if self._in_order else None

    def __contains__(self, transactional_id: str) -> bool:
        return transactional_id in self._of

    def set(self, transactional_id: str, deadline_ms: int | None) -> None:
        """Replace the id's deadline; None: it has no deadline."""
        known_ms = self._of.pop(transactional_id, None)
        if known_ms is not None:
            self._in_order.remove((known_ms, transactional_id))
        if deadline_ms is not None:
            self._of[transactional_id] = deadline_ms
            self._in_order.add((deadline_ms, transactional_id))

    def due(self, now_ms: int, limit: int) -> list[str]:
        """Return at most `limit` ids that are due, the earliest first."""
        found = []
        for deadline_ms, transactional_id in self._in_order.islice(0, limit):
            if deadline_ms > now_ms:
                break
            found.append(transactional_id)
        return found
