"""What a partition knows of transactions, against a list of all that is in its log.

Clients, one coordinator and a network that delays, repeats and reorders what they send. Producers
of even ids are of transaction.version 1, those of odd ids of version 2: an end raises their epoch.
"""

from dataclasses import dataclass
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quorumlog.broker.partitions.core import producer_state
from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.core.verification import Guard
from quorumlog.storage.core.aborted_transactions import AbortedTransactions
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import CONTROL_BIT, MAGIC, TRANSACTIONAL_BIT, BatchHeader
from quorumlog.wire.codec.transaction_markers import TransactionMarker
from tests.support.sizes import examples

PRODUCERS = (2, 3, 4, 5)
KNOWN_MAX = 2  # without an open transaction


class Entry(NamedTuple):
    """One record in the log; `transaction` counts the transactions of its producer."""

    header: BatchHeader
    transaction: int | None
    marker: TransactionMarker | None


@dataclass
class Client:
    """A producer as itself and the coordinator know it."""

    epoch: int = 0
    sequence: int = 0
    transaction: int = 0
    has_sent: bool = False
    is_ending: bool = False  # its marker is not written: nothing is added meanwhile


@dataclass
class Sent:
    """A batch on its way; `guard` once the coordinator has said yes to the `question`."""

    header: BatchHeader
    transaction: int | None
    guard: Guard | None = None
    question: Guard | None = None


class SentMarker(NamedTuple):
    marker: TransactionMarker
    transaction: int
    version: int


def header_of(producer_id: int, epoch: int, sequence: int, attributes: int) -> BatchHeader:
    return BatchHeader(0, 0, 0, MAGIC, 0, attributes, 0, 0, 1000, producer_id, epoch, sequence, 1)


class TransactionsInALog(RuleBasedStateMachine):
    kind: type[ProducerStates] = ProducerStates
    aborted_kind: type[AbortedTransactions] = AbortedTransactions

    def __init__(self) -> None:
        super().__init__()
        self.kept_max = producer_state.PRODUCERS_MAX
        producer_state.PRODUCERS_MAX = KNOWN_MAX  # type: ignore[misc]  # so that few are many
        self.states = self.kind()
        self.aborted = self.aborted_kind()
        self.log: list[Entry] = []
        self.high_watermark = 0
        self.clients = {producer_id: Client() for producer_id in PRODUCERS}
        self.batches: list[Sent] = []
        self.markers: list[SentMarker] = []
        self.coordinator_epoch = 1

    def teardown(self) -> None:
        producer_state.PRODUCERS_MAX = self.kept_max  # type: ignore[misc]

    # --- Clients and their coordinator ---

    @rule(producer_id=st.sampled_from(PRODUCERS), is_late=st.booleans())
    def send_in_transaction(self, producer_id: int, *, is_late: bool) -> None:
        client = self.clients[producer_id]
        has_epoch_of_its_own = producer_id % 2 == 1
        if client.is_ending and not has_epoch_of_its_own:
            return
        header = header_of(producer_id, client.epoch, client.sequence, TRANSACTIONAL_BIT)
        sent = Sent(header, client.transaction + client.is_ending)
        self.batches.append(sent)
        client.sequence += 1
        client.has_sent = client.has_sent or not client.is_ending
        if not is_late:
            self.asked(sent)
            self.arrived(sent, is_repeated=False)

    @rule(producer_id=st.sampled_from(PRODUCERS))
    def send_outside_of_a_transaction(self, producer_id: int) -> None:
        """It was sent before the transaction began, or by a client that is wrong."""
        client = self.clients[producer_id]
        header = header_of(producer_id, client.epoch, client.sequence, 0)
        self.batches.append(Sent(header, None))

    @rule(
        producer_id=st.sampled_from(PRODUCERS),
        commits=st.booleans(),
        arrives=st.sampled_from(("once", "twice", "later")),
    )
    def end(self, producer_id: int, *, commits: bool, arrives: str) -> None:
        client = self.clients[producer_id]
        if client.is_ending or not client.has_sent:
            return
        client.is_ending = True
        version = 2 if producer_id % 2 else 1
        if version == 2:
            client.epoch, client.sequence = client.epoch + 1, 0
        marker = TransactionMarker(producer_id, client.epoch, self.coordinator_epoch, commits)
        sent = SentMarker(marker, client.transaction, version)
        self.markers.append(sent)
        if arrives != "later":
            self.marker_came(sent, is_repeated=arrives == "twice")

    @rule()
    def another_coordinator_sends_all_again(self) -> None:
        self.coordinator_epoch += 1
        for sent in list(self.markers):
            client = self.clients[sent.marker.producer_id]
            if client.is_ending and sent.transaction == client.transaction:
                marker = sent.marker._replace(coordinator_epoch=self.coordinator_epoch)
                self.markers.append(sent._replace(marker=marker))

    # --- The partition ---

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        self.asked(data.draw(st.sampled_from(self.batches)))

    def asked(self, sent: Sent) -> None:
        header = sent.header
        if sent.guard is not None or not self.states.must_verify(header):
            return
        client = self.clients[header.producer_id]
        adds = header.producer_id % 2 == 1
        guard = self.states.guards.take(
            header.producer_id, header.producer_epoch, header.base_sequence, adds=adds
        )
        sent.question = guard
        self.answer_what_is_open(client)

    def answer_what_is_open(self, client: Client) -> None:
        """The coordinator says yes to what was asked for the open transaction, and waits for it."""
        if not client.is_ending:
            for sent in self.batches:
                if self.clients[sent.header.producer_id] is client:
                    is_open = sent.transaction == client.transaction
                    client.has_sent = client.has_sent or is_open
                    sent.guard = sent.guard or (sent.question if is_open else None)

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), is_repeated=st.booleans())
    def batch_arrives(self, data: st.DataObject, *, is_repeated: bool) -> None:
        self.arrived(data.draw(st.sampled_from(self.batches)), is_repeated=is_repeated)

    def arrived(self, sent: Sent, *, is_repeated: bool) -> None:
        if not is_repeated:
            self.batches = [one for one in self.batches if one is not sent]
        header = sent.header
        error_code, stored = self.states.check(header)
        if stored is not None or error_code is not ErrorCode.NONE:
            return
        error_code = self.states.check_transaction(header, sent.guard, is_asked=True)
        if error_code is not ErrorCode.NONE:
            return
        if sent.transaction is None:
            assert header.producer_id not in self.open_now()
        else:
            assert sent.transaction not in self.marked(header.producer_id)
        self.append(header, sent.transaction, None)

    @precondition(lambda self: self.markers)
    @rule(data=st.data(), is_repeated=st.booleans())
    def marker_arrives(self, data: st.DataObject, *, is_repeated: bool) -> None:
        self.marker_came(data.draw(st.sampled_from(self.markers)), is_repeated=is_repeated)

    def marker_came(self, sent: SentMarker, *, is_repeated: bool) -> None:
        if not is_repeated:
            self.markers.remove(sent)
        marker, client = sent.marker, self.clients[sent.marker.producer_id]
        error_code = self.states.check_marker(marker, sent.version)
        is_due = client.is_ending and sent.transaction == client.transaction
        if error_code is not ErrorCode.NONE:
            is_newest = marker.coordinator_epoch == self.coordinator_epoch
            assert not (is_due and is_newest), "a marker that is due must be written"
            if is_due and not is_repeated:
                self.markers.append(sent)  # until a coordinator that is not fenced sends it
            return
        open_of = self.open_now().get(marker.producer_id)
        if open_of is not None and not is_due and sent.version == 2:
            assert self.log[open_of].transaction == sent.transaction
        attributes = TRANSACTIONAL_BIT | CONTROL_BIT
        header = header_of(marker.producer_id, marker.producer_epoch, -1, attributes)
        if open_of is not None and not is_due:
            return  # of version 1: Kafka cannot tell a late marker from the one that is due
        self.append(header, sent.transaction, marker)
        if is_due:
            client.is_ending = client.has_sent = False
            client.transaction += 1
            self.answer_what_is_open(client)

    def append(
        self, header: BatchHeader, transaction: int | None, marker: TransactionMarker | None
    ) -> None:
        offset = len(self.log)
        aborted = self.states.record(header, offset, 1000, marker)
        self.log.append(Entry(header, transaction, marker))
        if aborted is not None:
            self.aborted.add(aborted)

    @rule(count=st.integers(1, 5))
    def commit(self, count: int) -> None:
        self.high_watermark = min(self.high_watermark + count, len(self.log))
        self.states.transactions.committed_to(self.high_watermark)

    @rule()
    def expire(self) -> None:
        self.states.expire(10**9, 1)

    @rule(cut=st.booleans())
    def read_the_log_again(self, *, cut: bool) -> None:
        """Restart, from a snapshot of what is committed; or lose what is not committed."""
        if cut:
            lost = self.log[self.high_watermark :]
            if any(entry.marker is not None for entry in lost):
                return  # the coordinator would send it again: to another leader
            del self.log[self.high_watermark :]
            self.aborted.cut(self.high_watermark)
        known, at = self.kind(), self.high_watermark
        for offset, entry in enumerate(self.log[:at]):
            known.record(entry.header, offset, 1000, entry.marker)
        self.states = self.kind()
        self.states.rebuild((), known.snapshot())
        for offset, entry in enumerate(self.log[at:], at):
            self.states.record(entry.header, offset, 1000, entry.marker)
        self.states.transactions.committed_to(self.high_watermark)

    # --- The model: everything is read again, each time ---

    def open_now(self) -> dict[int, int]:
        """Return where the open transaction of each producer begins."""
        found: dict[int, int] = {}
        for offset, entry in enumerate(self.log):
            if entry.marker is not None:
                found.pop(entry.header.producer_id, None)
            elif entry.transaction is not None:
                found.setdefault(entry.header.producer_id, offset)
        return found

    def marked(self, producer_id: int) -> set[int | None]:
        return {
            entry.transaction
            for entry in self.log
            if entry.marker is not None and entry.header.producer_id == producer_id
        }

    def ended_transactions(self) -> list[tuple[int, int, int, bool]]:
        """Return (producer, first offset, marker's offset, whether it is committed), in order."""
        found, begun = [], dict[int, int]()
        for offset, entry in enumerate(self.log):
            producer_id = entry.header.producer_id
            if entry.marker is None and entry.transaction is not None:
                begun.setdefault(producer_id, offset)
            elif entry.marker is not None and producer_id in begun:
                found.append((producer_id, begun.pop(producer_id), offset, entry.marker.commits))
        return found

    @invariant()
    def the_last_stable_offset_is_before_all_that_is_undecided(self) -> None:
        undecided = [
            first
            for _, first, marker, _ in self.ended_transactions()
            if marker >= self.high_watermark
        ]
        expected = min([*self.open_now().values(), *undecided, self.high_watermark])
        found = self.states.transactions.last_stable_offset(0, self.high_watermark)
        assert found == expected

    @invariant()
    def every_open_transaction_is_known(self) -> None:
        for producer_id, first_offset in self.open_now().items():
            described = self.states.describe(producer_id)
            assert described is not None
            assert described.transaction_offset == first_offset
        assert len(self.states.transactions) == len(self.open_now())
        assert len(self.states) - len(self.open_now()) <= KNOWN_MAX

    @invariant()
    def readers_are_told_of_every_aborted_transaction(self) -> None:
        end = len(self.log)
        aborted = [one[:3] for one in self.ended_transactions() if not one[3]]
        found = self.aborted.within(0, end)
        assert [one[:3] for one in found] == aborted
        for start, stop in ((0, end), (end // 2, end), (end // 3, 2 * end // 3)):
            told = self.aborted.reaching_into(start, stop)
            needed = [one for one in found if one.last_offset >= start and one.first_offset < stop]
            assert [one for one in told if one in needed] == needed
            assert told == needed


TestTransactionsInALog = TransactionsInALog.TestCase
TestTransactionsInALog.settings = examples(200, stateful_step_count=50)
