"""The rules of transactions, checked from producers and readers, over all brokers and crashes.

It records the requests and responses of producers, the arrival of requests, and the coordinator
that received each, and reads the committed records of the data partitions and the clocks of the
machines. It has no other state of coordinators. Each record has the tag of its transaction.
Sources: KIP-98, KIP-360, KIP-890.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from quorumlog.broker.transactions.core.requests import (
    NO_PRODUCER,
    EndTransaction,
    ProducerIdAndEpoch,
    Request,
)
from quorumlog.chaos.simulation.kernel.rules import Violation, check
from quorumlog.chaos.simulation.worlds.brokers.topic_lives import TopicLives
from quorumlog.chaos.simulation.worlds.entries import Entry, is_in_transaction
from quorumlog.chaos.simulation.worlds.transactions.committed_view import CommittedView
from quorumlog.chaos.simulation.worlds.transactions.epoch_accounts import EpochAccounts
from quorumlog.chaos.simulation.worlds.transactions.initializations import Initializations
from quorumlog.chaos.simulation.worlds.transactions.instances import (
    Asking,
    Instance,
    Transaction,
    tag_of,
)
from quorumlog.wire.codec.identifiers import TopicPartition

STRANGER_IS_AHEAD: Final = 50  # epochs
LAST_EPOCH: Final = 32_766  # one below the maximum of int16, which fences this last epoch


class TransactionOracle:
    """Checks the responses to producers and readers. `look` reads the committed records first."""

    def __init__(
        self,
        committed: Mapping[TopicPartition, list[Entry]],
        places: list[TopicPartition],
        topics: TopicLives,
        *,
        clocks_ms: Callable[[], list[int]],
        expiration_ms: int,
    ) -> None:
        """`places`: the partitions, by topic name. `clocks_ms`: the times of the machines."""
        self._committed: Final = committed
        self._clocks_ms: Final = clocks_ms
        self._expiration_ms: Final = expiration_ms
        self._places: Final = places
        self.topics: Final = topics
        self.views: Final[dict[TopicPartition, CommittedView]] = {}
        self._transactions: Final[dict[str, Transaction]] = {}
        self._requests = 0
        self._epochs: Final = EpochAccounts()
        self._rivals: Final[dict[str, int]] = {}  # the last Init without an epoch, by id
        self._inits: Final = Initializations()
        self._looked_ms = 0  # the slowest clock at the last look
        self._known_ms: Final[dict[str, int]] = {}  # the latest of its instances, by id
        self._owners: Final[dict[ProducerIdAndEpoch, Instance]] = {}
        self._newest: Final[dict[str, ProducerIdAndEpoch]] = {}  # returned by an Init, by id

    # --- committed records ---

    def place_of(self, at: TopicPartition) -> TopicPartition | None:
        """Return the place of the newest topic of this name; None if it is deleted."""
        place = self.topics.places_of(at)[-1]
        return None if self.topics.is_deleted(place) else place

    def _renew_views(self) -> None:
        """Keep views only of existing topics: records of a deleted topic do not count."""
        places = [place for at in self._places if (place := self.place_of(at)) is not None]
        if [*self.views] != places:
            known = {place: self.views.get(place) or CommittedView() for place in places}
            self.views.clear()
            self.views.update(known)

    def look(self) -> None:
        """Read the newly committed records, and apply their markers."""
        self._renew_views()
        for at, view in self.views.items():
            for ended in view.go_on(self._committed[at]):
                for value in ended.records.values():
                    transaction = self._transactions[tag_of(value)]
                    self._end(at, transaction, commits=ended.commits)
        for view in self.views.values():
            while view.begun:
                first = view.begun.pop()
                is_open = first in view.open_firsts
                self._check_others(self._transactions[tag_of(first)], is_open=is_open)
        self._looked_ms = min(self._clocks_ms())

    def _check_others(self, begun: Transaction, *, is_open: bool) -> None:
        """Check that an id's last transaction has all its markers before the next one begins.

        If `begun` is not open any more, a later transaction may have begun since.
        """
        for at, view in self.views.items():
            for value in view.open_firsts:
                other = self._transactions[tag_of(value)]
                is_same_id = other.instance.transactional_id == begun.instance.transactional_id
                is_later = other.number > begun.number and not is_open
                rule = f"one-open: {other.tag} is open in {at} beside {begun.tag}"
                check(not is_same_id or other is begun or is_later, rule)

    def _end(self, at: TopicPartition, transaction: Transaction, *, commits: bool) -> None:
        """Check that a marker may end this transaction with this outcome."""
        tag, what = transaction.tag, "committed" if commits else "aborted"
        if transaction.outcome is None:
            transaction.outcome = commits
            rule = f"outcome: {tag} is {what} in {at}, its producer never requested it"
            is_asked = commits in transaction.asked
            check(is_asked or (not commits and self._may_be_aborted(transaction)), rule)
        check(transaction.outcome is commits, f"one-outcome: {tag} is {what} in {at}, not before")
        self._check_told(transaction)
        # The marker came after the last look; the transaction completes after its markers.
        self._has_changed(transaction.instance, self._looked_ms)
        rule = f"fenced-committed: {tag} is committed in {at} after a newer producer had begun"
        check(not (commits and transaction.is_fenced), rule)
        rule = f"refused-committed: {tag} is committed in {at}, its producer got a refusal"
        check(not (commits and transaction.is_refused), rule)

    def _check_told(self, transaction: Transaction) -> None:
        told, outcome = transaction.told, transaction.outcome
        is_known = told is not None and outcome is not None
        rule = f"told: {transaction.tag} is a commit: {outcome}, its producer received {told}"
        check(not is_known or told is outcome, rule)

    def _may_be_aborted(self, transaction: Transaction) -> bool:
        """Return whether a newer producer begins, or it has timed out by some clock."""
        return self._has_rival(transaction.instance) or self._has_lasted(transaction)

    def _has_rival(self, instance: Instance) -> bool:
        return self._rivals[instance.transactional_id] > instance.came

    def _has_lasted(self, transaction: Transaction) -> bool:
        passed_ms = max(self._clocks_ms()) - transaction.began_ms
        return passed_ms >= transaction.instance.timeout_ms

    # --- producers ---

    def came_in(
        self, transactional_id: str, init: ProducerIdAndEpoch | None, coordinator: object
    ) -> int:
        """Record a request that a broker received; return its number.

        `init`: the producer that an Init names; None for another request. `coordinator`: the
        receiving one; None if none serves there.
        """
        self._requests += 1
        if init == NO_PRODUCER:
            self._rivals[transactional_id] = self._requests
        if init is not None:
            self._epochs.may_cost_one(transactional_id, self._requests)
        if init is not None and coordinator is not None:
            known_ms = self._known_ms.get(transactional_id, 0)
            may_be_first = self._may_have_expired(known_ms)
            self._inits.came_in(self._requests, init, coordinator, may_be_first=may_be_first)
        return self._requests

    def gave_nothing(self, transactional_id: str, came: int) -> None:
        """Record that a coordinator has refused an Init without any change."""
        self._epochs.costs_none(transactional_id, came)
        self._inits.refused(came)

    def initialized(self, instance: Instance, producer: ProducerIdAndEpoch, came: int) -> None:
        """Record the epoch of a new producer: older producers of its id are fenced."""
        self.look()
        instance.came = came
        self._has_epoch(instance, producer)
        self._epochs.begin(instance.transactional_id, producer, came)
        name = instance.transactional_id
        self._newest[name] = max(self._newest.get(name, producer), producer)
        for transaction in self._transactions.values():
            is_same = transaction.instance.transactional_id == name
            if is_same and transaction.producer < producer:
                transaction.is_fenced = True

    def goes_on(self, instance: Instance, producer: ProducerIdAndEpoch) -> None:
        """Record that a producer received the epoch of its next transaction."""
        self._has_epoch(instance, producer)

    def _has_epoch(self, instance: Instance, producer: ProducerIdAndEpoch) -> None:
        owner = self._owners.setdefault(producer, instance)
        rule = f"one-epoch: {owner.name} and {instance.name} are both {producer}"
        check(owner is instance, rule)
        check(0 <= producer.epoch <= LAST_EPOCH, f"last-epoch: {instance.name} is {producer}")
        unexplained = self._epochs.unexplained(instance.transactional_id, producer)
        check(unexplained <= 0, f"epochs: {unexplained} before {producer} have no cause")
        instance.producer = producer

    def is_fenced(self, instance: Instance) -> bool:
        """Return whether another producer has received a newer epoch."""
        newest = self._newest.get(instance.transactional_id, NO_PRODUCER)
        return instance.producer is not None and newest > instance.producer

    def asks(self, instance: Instance) -> Asking:
        """Return the state at the time when a producer sends a request."""
        return Asking(min(self._clocks_ms()), self.is_fenced(instance))

    def granted(self, instance: Instance, asking: Asking, request: Request, came: int) -> None:
        """Record that a coordinator granted a request of a producer."""
        rule = f"fenced-acts: {instance.name}, {instance.producer}, may {type(request).__name__}"
        check(not asking.is_fenced or self._inits.may_be_first(came), rule)
        if not isinstance(request, EndTransaction):  # a repeated EndTxn may change nothing
            self._has_changed(instance, asking.sent_ms)

    def _has_changed(self, instance: Instance, since_ms: int) -> None:
        """Record that an id was changed at this time or later, by the slowest clock."""
        instance.known_ms = max(instance.known_ms, since_ms)
        name = instance.transactional_id
        self._known_ms[name] = max(self._known_ms.get(name, 0), since_ms)

    def fenced(
        self,
        instance: Instance,
        transaction: Transaction | None,
        what: str,
        coordinator: object,
    ) -> None:
        """Check that this coordinator may fence a producer.

        `transaction`: it may have timed out. Then it is aborted, and was not committed.
        """
        self.look()
        if (
            self._has_rival(instance)
            or self._may_have_expired(instance.known_ms)
            or self._inits.may_be_replaced(instance.producer, coordinator)
        ):
            return
        rule = f"fenced-wrongly: {instance.name}, {instance.producer}, receives {what}"
        is_by_clock = transaction is not None and self._has_lasted(transaction)
        check(is_by_clock, rule)
        if transaction is not None:
            transaction.is_refused = True
            is_committed = transaction.outcome is True
            check(not is_committed, f"refused-committed: {transaction.tag} is committed, {what}")

    def _may_have_expired(self, known_ms: int) -> bool:
        return max(self._clocks_ms()) - known_ms >= self._expiration_ms

    def mistaken(self, instance: Instance, what: str) -> None:
        """Raise Violation: the coordinator rejected a valid request of a producer."""
        raise Violation(f"mistaken: {instance.name}, {instance.producer}, receives {what}")

    def stranger(self, transactional_id: str) -> ProducerIdAndEpoch | None:
        """Return a producer epoch that stays unused for long; None if there is none."""
        known = self._newest.get(transactional_id, NO_PRODUCER)
        epoch = known.epoch + STRANGER_IS_AHEAD
        is_one = known != NO_PRODUCER and epoch <= LAST_EPOCH
        return known._replace(epoch=epoch) if is_one else None

    def stranger_granted(self, producer: ProducerIdAndEpoch, what: str, came: int) -> None:
        """Check that a coordinator may grant a request of a stranger."""
        check(self._inits.may_be_first(came), f"stranger-acts: {producer} may {what}")

    # --- transactions ---

    def began(self, tag: str, instance: Instance, producer: ProducerIdAndEpoch) -> Transaction:
        """Return a new transaction."""
        self._requests += 1
        began_ms = min(self._clocks_ms())
        transaction = Transaction(tag, self._requests, instance, producer, began_ms)
        self._transactions[tag] = transaction
        self._epochs.may_cost_one(instance.transactional_id, self._requests)
        return transaction

    def asks_to_end(self, transaction: Transaction, *, commits: bool) -> None:
        """Record that its producer requests this outcome."""
        transaction.asked.setdefault(commits, min(self._clocks_ms()))

    def told(self, transaction: Transaction, *, commits: bool) -> None:
        """Record that a producer received the outcome of its transaction."""
        self.look()
        transaction.told = commits
        self._check_told(transaction)
        has_rival = self._has_rival(transaction.instance)
        ended_ms = transaction.ended_ms(commits=commits, has_rival=has_rival)
        self._has_changed(transaction.instance, ended_ms)

    def acknowledged(self, transaction: Transaction, values: list[bytes]) -> None:
        """Record the acknowledged records of a transaction."""
        transaction.acknowledged.update(values)

    def misplaced(
        self, transaction: Transaction, at: TopicPartition, offset: int, value: bytes
    ) -> None:
        """Check that a leader may accept a batch outside the open transaction and its partitions.

        A plain batch is refused where the log has an open transaction of its producer, as in
        Kafka's `ProducerAppendInfo`: a topic that was re-created meanwhile has none. A batch for a
        partition that was not added is refused unless the transaction may have been aborted.
        """
        rule = f"misplaced: {value!r} is taken at {offset} of {at}"
        for place in self.topics.places_of(at):
            entries = self._committed[place]
            if offset >= len(entries) or entries[offset].content != value:
                continue  # another batch is at this offset
            if entries[offset].is_transactional:
                is_wrong = not self._may_be_aborted(transaction)
            else:
                is_wrong = is_in_transaction(entries[:offset], transaction.producer.producer_id)
            check(not is_wrong, rule)

    # --- readers ---

    def read(
        self,
        at: TopicPartition,
        from_offset: int,
        next_offset: int,
        last_stable_offset: int,
        shown: dict[int, bytes],
    ) -> None:
        """Compare a leader's records in [from_offset, next_offset) at `read_committed`.

        `at`: a place of an existing topic.
        """
        self.look()
        view = self.views[at]
        rule = f"stable: {last_stable_offset} of {at}, a transaction is open from"
        check(last_stable_offset <= view.last_stable_offset, f"{rule} {view.last_stable_offset}")
        wanted = {
            offset: view.visible[offset]
            for offset in range(from_offset, next_offset)
            if offset in view.visible
        }
        for offset in sorted(shown.keys() | wanted.keys()):
            was, must = shown.get(offset), wanted.get(offset)
            check(was == must, f"read-committed: {was!r} at {offset} of {at} instead of {must!r}")

    def is_decided(self) -> bool:
        """Return whether every transaction has all its markers."""
        self.look()
        return not any(view.open_records for view in self.views.values())

    def finish(self) -> None:
        """Compare the visible records at the end with the outcomes that producers received."""
        seen: dict[bytes, int] = {}
        for view in self.views.values():
            for value in view.visible.values():
                seen[value] = seen.get(value, 0) + 1
        for value, count in sorted(seen.items()):
            check(count == 1, f"exactly-once: {value!r} is committed {count} times")
        gone = {entry.content for entry in self._deleted_entries()}
        for tag, transaction in self._transactions.items():
            missing = sorted(transaction.acknowledged - seen.keys() - gone)
            is_committed = transaction.told or transaction.outcome
            check(not (is_committed and missing), f"wholly: {tag} is committed without {missing}")

    def _deleted_entries(self) -> Iterator[Entry]:
        for at in self._places:
            for place in self.topics.places_of(at):
                if self.topics.is_deleted(place):
                    yield from self._committed[place]
