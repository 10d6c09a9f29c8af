"""The rules of transactions, by the committed logs and the messages of clients.

    transition        a transactional id goes through the states of KIP-98: one decision, and its
                      markers, and then the next transaction
    epochs            a change takes at most one epoch of a producer id (KAFKA-19367); epochs never
                      decrease, and their last is for fencing only
    own-id            a producer id has one transactional id; a new producer id comes after the last
                      epochs of the old, and is unused
    expires           only an id that was unused for the expiration time has a tombstone
    partitions-kept   a transaction keeps its partitions until it is complete
    requested         a commit was requested by its producer, with the epoch of the transaction; and
                      an abort without an epoch of its own, too
    completed-added   a complete transaction has its marker in each of its partitions
    one-outcome       a marker has the outcome of a decision that was committed before it
    added             a batch of a transaction is in a partition that was added before (KIP-890); a
                      response confirms committed additions only
    late-batch        no batch comes after the marker that ended its epoch (KIP-890)
    late-marker       no marker of an earlier decision ends a transaction (KIP-1228)
    stable            a last stable offset is at most the first offset of an open transaction
    aborted-listed    a fetch response names the aborted transactions of its records
    misplaced         no plain batch of a producer is in its open transaction
    reported-outcome  a producer receives the outcome that is in the log
    one-epoch         two producers get different epochs
    fenced-acts       a producer with an older epoch adds nothing, ends nothing, and gets no epoch

Sources: KIP-98, KIP-360, KIP-890.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from quorumlog.broker.transactions.core.records import TransactionMetadata, TransactionRecord
from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.chaos.simulation.oracles import exchanges
from quorumlog.chaos.simulation.oracles.exchanges import Exchange
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_PRODUCER_ID, TopicPartition
from quorumlog.wire.codec.records import BatchHeader, iterate_headers
from quorumlog.wire.codec.transaction_markers import TransactionMarker

Violated = Callable[[str], None]
Exists = Callable[[TopicPartition], bool]
WITH_EPOCH_BUMP: Final = 2  # the transaction version since which each decision takes an epoch
_EMPTY, _ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
_DECIDED: Final = {TransactionState.PREPARE_COMMIT: True, TransactionState.PREPARE_ABORT: False}
_COMPLETE: Final = {TransactionState.COMPLETE_COMMIT: True, TransactionState.COMPLETE_ABORT: False}
_BETWEEN: Final = frozenset({_EMPTY, *_COMPLETE})
_LAST_EPOCHS: Final = 32_765  # from here on, a decision may begin a new producer id
_FENCING_EPOCH: Final = 32_767
_EXPIRATION_MS: Final = 604_800_000  # the default of transactional.id.expiration.ms


class Place(NamedTuple):
    """A producer's state in one partition. `first_offset`: of its open transaction; -1: none."""

    first_offset: int = -1
    epoch: int = -1  # of its open transaction
    marker_epoch: int = -1  # of its last marker
    coordinator_epoch: int = -1  # of its last marker


class _Ended(NamedTuple):
    """A transaction of a partition, from its first record to its marker."""

    first_offset: int
    marker_offset: int
    commits: bool


class Transactions:
    """All transactional ids of a run, and their batches in all partitions."""

    def __init__(
        self, exists: Exists, violated: Violated, expiration_ms: int = _EXPIRATION_MS
    ) -> None:
        """`exists`: whether the newest metadata has a partition, since its first batch."""
        self._exists: Final = exists
        self._violated: Final = violated
        self._expiration_ms: Final = expiration_ms
        self.states: Final[dict[str, TransactionMetadata]] = {}
        self._owners: Final[dict[int, str]] = {}  # transactional ids, by producer id
        self.places: Final[dict[TopicPartition, dict[int, Place]]] = defaultdict(dict)
        self._ended: Final[dict[tuple[TopicPartition, int], list[_Ended]]] = defaultdict(list)
        self._last_ended: Final[dict[TopicPartition, list[_Ended]]] = defaultdict(list)
        self._inits: Final[dict[str, int]] = defaultdict(int)  # that may abort, by id
        self._inits_before: Final[dict[str, int]] = {}  # when the transaction began
        self._bumped: Final[set[tuple[int, int]]] = set()  # decisions with an epoch of their own
        self._added: Final[dict[tuple[int, int], set[TopicPartition]]] = defaultdict(set)
        self._decisions: Final[dict[tuple[int, int], set[bool]]] = defaultdict(set)
        self._marked: Final[set[tuple[TopicPartition, int, int, bool]]] = set()
        self._requests: Final[set[tuple[int, int, bool]]] = set()  # EndTxn: commits or not
        self.begun: Final[set[tuple[int, int]]] = set()  # epochs given to new producers, by id
        self._given: Final[dict[int, set[int]]] = defaultdict(set)  # epochs, by producer id
        self._doubts: Final[list[Callable[[], str]]] = []  # each returns a violation, or ""

    def look(self) -> None:
        """Check the records of this turn against one another, in whatever order they were read."""
        for doubt in self._doubts:
            if wrong := doubt():
                self._violated(wrong)
        self._doubts.clear()

    # --- the log of the coordinators ---

    def read(self, record: TransactionRecord, written_ms: int) -> None:
        """Apply a record of `__transaction_state`. `written_ms`: its timestamp."""
        name, new = record.transactional_id, record.metadata
        before = self.states.pop(name, None)
        if new is None:
            if before is not None:
                self._check_expiry(name, before, written_ms)
            return
        self.states[name] = new
        self._check_producer(name, before, new)
        if before is not None:
            self._check_transition(name, before, new)
        key = new.producer_id, new.producer_epoch
        if new.state is _ONGOING:
            self._added[key].update(new.partitions)
            if before is None or before.state is not _ONGOING:
                self._inits_before[name] = self._inits[name]
        elif new.state in _DECIDED:
            commits = _DECIDED[new.state]
            self._decisions[key].add(commits)
            if new.client_transaction_version >= WITH_EPOCH_BUMP:
                self._bumped.add(key)
            else:  # the client no longer bumps: its transactions end in their own epoch
                self._bumped.discard(key)
            self._check_request(name, before, new, commits=commits)

    def _check_transition(
        self, name: str, before: TransactionMetadata, new: TransactionMetadata
    ) -> None:
        shown = f"{name}: {_shown(before)} becomes {_shown(new)}"
        if new.state not in _following(before.state):
            self._violated(f"transition: {shown}")
        rise = new.producer_epoch - before.producer_epoch
        if new.producer_id == before.producer_id and not 0 <= rise <= 1:
            self._violated(f"epochs: {shown}")
        is_open = before.state is _ONGOING
        grows = {*before.partitions} <= {*new.partitions}
        is_kept = grows if new.state is _ONGOING else {*before.partitions} == {*new.partitions}
        if is_open and not is_kept:
            self._violated(f"partitions-kept: {shown}, without {_missing(before, new)}")
        if before.state in _DECIDED and new.state in _COMPLETE:
            self._doubts.append(partial(self._unmarked, name, before))

    def _check_expiry(self, name: str, before: TransactionMetadata, written_ms: int) -> None:
        unused_ms = written_ms - before.last_update_ms
        if before.state not in _BETWEEN or unused_ms < self._expiration_ms:
            self._violated(f"expires: {name}: {_shown(before)}, unused for {unused_ms} ms")

    def _check_producer(
        self, name: str, before: TransactionMetadata | None, new: TransactionMetadata
    ) -> None:
        producer_id = new.producer_id
        is_changed = before is not None and before.producer_id != producer_id
        is_used = is_changed and producer_id in self._owners
        is_early = before is not None and is_changed and before.producer_epoch < _LAST_EPOCHS
        if is_used or is_early or self._owners.setdefault(producer_id, name) != name:
            shown = "nothing" if before is None else _shown(before)
            self._violated(f"own-id: {name}: {shown} becomes {_shown(new)}")
        if new.state in {_EMPTY, _ONGOING} and new.producer_epoch >= _FENCING_EPOCH:
            self._violated(f"epochs: {name}: {_shown(new)}")

    def _unmarked(self, name: str, decided: TransactionMetadata) -> str:
        commits = _DECIDED[decided.state]
        for at in decided.partitions:
            marked = (at, decided.producer_id, decided.producer_epoch, commits)
            if marked not in self._marked and self._exists(at):
                return (
                    f"completed-added: {name}: {_shown(decided)} is complete without its marker in "
                    f"{at.topic}-{at.partition}"
                )
        return ""

    def _check_request(
        self,
        name: str,
        before: TransactionMetadata | None,
        decided: TransactionMetadata,
        *,
        commits: bool,
    ) -> None:
        """Check the cause of a decision. The coordinator's own aborts take an epoch."""
        producer_id, epoch = decided.producer_id, decided.producer_epoch
        if before is None or before.producer_id != producer_id or before.state is not _ONGOING:
            return
        if (producer_id, before.producer_epoch, commits) in self._requests:
            return
        is_own = not commits and epoch > before.producer_epoch
        has_rival = self._inits[name] > self._inits_before.get(name, -1)
        lasted_ms = decided.last_update_ms - before.start_ms
        if not is_own or not (has_rival or lasted_ms >= before.transaction_timeout_ms):
            what = "commit" if commits else "abort"
            self._violated(
                f"requested: {name}: {_shown(decided)}, and no producer requested the {what}"
            )

    # --- the logs of the partitions ---

    def marked(self, at: TopicPartition, marker: TransactionMarker, offset: int) -> None:
        """Apply a committed marker."""
        producer_id, epoch, _, commits = marker
        self._doubts.append(partial(self._undecided, at, marker))
        self._marked.add((at, producer_id, epoch, commits))
        place = self.places[at].get(producer_id, Place())
        if place.first_offset >= 0:
            ended = _Ended(place.first_offset, offset, commits)
            self._ended[at, producer_id].append(ended)
            self._last_ended[at] = [*self._last_ended[at][-_ENDED_MAX:], ended]
            if place.epoch >= epoch and (producer_id, epoch) in self._bumped:
                self._violated(
                    f"late-marker: {at.topic}-{at.partition} has a marker of producer "
                    f"{producer_id} in epoch {epoch}, and its transaction there is of {place.epoch}"
                )
        self.places[at][producer_id] = Place(
            marker_epoch=epoch, coordinator_epoch=marker.coordinator_epoch
        )

    def _undecided(self, at: TopicPartition, marker: TransactionMarker) -> str:
        decisions = self._decisions.get((marker.producer_id, marker.producer_epoch), set())
        if marker.commits in decisions:
            return ""
        return (
            f"one-outcome: a marker in {at.topic}-{at.partition} has the outcome {marker.commits} "
            f"for producer {marker.producer_id} in epoch {marker.producer_epoch}; the committed "
            f"decision is {sorted(decisions) or 'none'}"
        )

    def appended(self, at: TopicPartition, header: BatchHeader) -> None:
        """Apply the header of a committed batch with a producer id, no marker."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        place = self.places[at].get(producer_id, Place())
        shown = f"{at.topic}-{at.partition} has a batch of producer {producer_id} in epoch {epoch}"
        if not header.is_transactional:
            if place.first_offset >= 0:
                self._violated(f"misplaced: {shown} outside of its open transaction")
            return
        self._doubts.append(partial(self._unadded, at, producer_id, epoch))
        if epoch < place.marker_epoch:
            self._violated(f"late-batch: {shown}, after a marker of {place.marker_epoch}")
        if place.first_offset < 0:
            self.places[at][producer_id] = place._replace(
                first_offset=header.base_offset, epoch=epoch
            )

    def _unadded(self, at: TopicPartition, producer_id: int, epoch: int) -> str:
        if at in self._added.get((producer_id, epoch), set()):
            return ""
        return (
            f"added: {at.topic}-{at.partition} has a batch of producer {producer_id} in epoch "
            f"{epoch}, to whose transaction it was not added"
        )

    def unadded(self, state: TransactionMetadata) -> TopicPartition | None:
        """Return a partition that was not added to the transaction of this epoch, if there is."""
        added = self._added.get((state.producer_id, state.producer_epoch), set())
        return next((at for at in self.places if at not in added), None)

    # --- clients ---

    def asked(self, exchange: Exchange) -> None:
        """Record a request of a producer that arrives."""
        request = exchange.request
        producer_id = getattr(request, "producer_id", NO_PRODUCER_ID)
        known = self.states.get(request.transactional_id)
        exchange.mark = max(self._given.get(producer_id, ()), default=-1)
        if known is not None and known.producer_id == producer_id:
            exchange.mark = max(exchange.mark, known.producer_epoch)
        match exchange.header.api_key:
            case exchanges.END_TXN:
                self._requests.add((producer_id, request.producer_epoch, request.committed))
            case exchanges.INIT_PRODUCER_ID if not exchange.is_rude:
                epoch = request.producer_epoch
                exchange.is_fenced = any(
                    begun_id == producer_id != NO_PRODUCER_ID and begun > epoch
                    for begun_id, begun in self.begun
                )
                if producer_id == NO_PRODUCER_ID or epoch >= exchange.mark:
                    self._inits[request.transactional_id] += 1
            case _:
                pass

    def initialized(self, exchange: Exchange) -> None:
        """Check the response to an InitProducerId."""
        request, response = exchange.request, exchange.response
        if response.error_code != ErrorCode.NONE or not request.transactional_id:
            return
        producer_id, epoch = response.producer_id, response.producer_epoch
        given = self._given[producer_id]
        if request.producer_id == NO_PRODUCER_ID and epoch in given:
            self._violated(
                f"one-epoch: {request.transactional_id}: producer {producer_id} gets epoch {epoch} "
                "twice"
            )
        given.add(epoch)
        if request.producer_id == NO_PRODUCER_ID:
            self.begun.add((producer_id, epoch))
        is_same_id = producer_id == request.producer_id  # else the transactional id had expired
        if exchange.is_rude or (exchange.is_fenced and is_same_id):
            self._violated(
                f"fenced-acts: {request.transactional_id}, producer {producer_id} in epoch "
                f"{request.producer_epoch}, gets epoch {epoch} after {exchange.mark}"
            )

    def ended(self, exchange: Exchange) -> None:
        """Check the response to an EndTxn."""
        request, response = exchange.request, exchange.response
        if response.error_code != ErrorCode.NONE or request.producer_epoch >= _LAST_EPOCHS:
            return
        producer_id, epoch = request.producer_id, request.producer_epoch
        has_bump = exchange.header.api_version >= _BUMPS_SINCE
        of_it = self._decisions.get((producer_id, epoch + has_bump), set())
        name = f"{request.transactional_id}, producer {producer_id} in epoch {epoch},"
        what = "commit" if request.committed else "abort"
        if request.committed not in of_it and (request.committed or of_it):
            self._violated(
                f"reported-outcome: {name} may {what}, and the committed decision is "
                f"{sorted(of_it) or 'none'}"
            )
        self._check_fenced(exchange, epoch + bool(of_it), what)

    def fetched(self, exchange: Exchange, names: Callable[[bytes], str | None]) -> None:
        """Check the response to a Fetch at read_committed. `names`: of topic ids."""
        for topic in exchange.response.responses:
            name = topic.topic or names(topic.topic_id) or ""
            for one in topic.partitions:
                if one.error_code == ErrorCode.NONE and name:
                    self._check_fetched(TopicPartition(name, one.partition_index), one, exchange)

    def _check_fetched(self, at: TopicPartition, part: Any, exchange: Exchange) -> None:
        shown = f"node {exchange.node_id} serves {at.topic}-{at.partition}"
        stable, high_watermark = part.last_stable_offset, part.high_watermark
        first_offsets = [one.first_offset for one in self.places[at].values()]
        first_offsets += [
            one.first_offset for one in self._last_ended[at] if one.marker_offset >= high_watermark
        ]
        if wrong := [first for first in first_offsets if 0 <= first < stable]:
            self._violated(f"stable: {shown} up to {stable}, and {min(wrong)} is undecided")
        told = {(one.producer_id, one.first_offset) for one in part.aborted_transactions or ()}
        for _, header in iterate_headers(part.records or b""):
            producer_id, offset = header.producer_id, header.base_offset
            if not header.is_transactional or header.is_control:
                continue
            for one in reversed(self._ended[at, producer_id]):
                if one.first_offset <= offset < one.marker_offset:
                    if not one.commits and (producer_id, one.first_offset) not in told:
                        self._violated(f"aborted-listed: {shown}, without the abort at {offset}")
                    break

    def confirmed(self, exchange: Exchange) -> None:
        """Check the response to an AddPartitionsToTxn: each granted partition was added."""
        request, response = exchange.request, exchange.response
        results = {
            one.transactional_id: one.topic_results for one in response.results_by_transaction
        }
        for one in request.transactions:
            topics = results.get(one.transactional_id, ())
            self._check_added(one.transactional_id, (one.producer_id, one.producer_epoch), topics)
        self._check_added(
            request.v3_and_below_transactional_id,
            (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
            response.results_by_topic_v3_and_below,
        )

    def _check_added(self, name: str, producer: tuple[int, int], topics: Iterable[Any]) -> None:
        known = self._added.get(producer, set())
        for topic in topics:
            for answer in topic.results_by_partition:
                at = TopicPartition(topic.name, answer.partition_index)
                if answer.partition_error_code == ErrorCode.NONE and at not in known:
                    self._violated(
                        f"added: {name} in epoch {producer[1]} receives the confirmation of "
                        f"{at.topic}-{at.partition}, which was not added"
                    )

    def added(self, exchange: Exchange) -> None:
        """Check the response to an AddOffsetsToTxn or to a TxnOffsetCommit."""
        response = exchange.response
        codes = [getattr(response, "error_code", ErrorCode.NONE)]
        codes += [
            one.error_code for topic in getattr(response, "topics", ()) for one in topic.partitions
        ]
        if all(code == ErrorCode.NONE for code in codes):
            self._check_fenced(exchange, exchange.request.producer_epoch, "add")

    def _check_fenced(self, exchange: Exchange, epoch: int, what: str) -> None:
        """Check a granted request of a producer against the epochs given before it arrived."""
        request = exchange.request
        if exchange.mark > epoch:
            self._violated(
                f"fenced-acts: {request.transactional_id}, producer {request.producer_id} in epoch "
                f"{request.producer_epoch}, may {what} after epoch {exchange.mark}"
            )


_BUMPS_SINCE: Final = 5  # the version of EndTxn
_ENDED_MAX: Final = 50  # ended transactions of a partition that late reads are compared with


def _following(state: TransactionState) -> Collection[TransactionState]:
    if state in _BETWEEN:
        return {_EMPTY, _ONGOING, TransactionState.PREPARE_ABORT}
    if state is _ONGOING:
        return {_ONGOING, *_DECIDED}
    commits = _DECIDED[state]
    return {one for one, outcome in _COMPLETE.items() if outcome is commits}


def _shown(metadata: TransactionMetadata) -> str:
    return f"{metadata.state.value} {metadata.producer_id}/{metadata.producer_epoch}"


def _missing(before: TransactionMetadata, new: TransactionMetadata) -> Any:
    return " ".join(f"{at.topic}-{at.partition}" for at in {*before.partitions} ^ {*new.partitions})
