"""Clients, a coordinator that may fail over, a network for markers, and partitions.

Every step is compared with `model.Model` and with the records of the partitions. Invariants:
  a. Every response, and every written record, is as the KIPs require.
  b. The coordinator is what a replay of its log gives, always.
  c. All data of one transaction, in all partitions, has one outcome: the one in the log, which is
     there before the first marker. The client received the same outcome.
  d. Epochs never fall, and no producer id is used again.
  e. A producer that another has replaced does nothing any more.
  f. An addition to an id that is busy waits, but not for long: `waiting_additions`.
"""

from dataclasses import replace
from typing import Any

from quorumlog.broker.transactions.core.effects import AllocateProducerId, SendMarkers
from quorumlog.broker.transactions.core.events import PartitionsDeleted, TransactionVersionChanged
from quorumlog.broker.transactions.core.records import TransactionRecord, encode
from quorumlog.broker.transactions.core.requests import AddPartitions, InitProducerId
from quorumlog.broker.transactions.core.rules import SOUND, TransactionRules
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from tests.support.transactions import model as kips
from tests.support.transactions.clients import Asked, Client, UnderWay
from tests.support.transactions.coordination import (
    SETTINGS,
    START_MS,
    Coordination,
    records_of,
    stored,
    verify,
)
from tests.support.transactions.model import NOBODY, Answer, Change, Model
from tests.support.transactions.network import Network, Partition, Tag
from tests.support.transactions.waiting_additions import WaitingAdditions, waits


def check_log(coordination: Coordination) -> None:
    """b: the live state equals the log; d: epochs never fall, and no id is used again."""
    newest: dict[str, TransactionRecord] = {}
    used: dict[int, str] = {}
    epochs: dict[int, int] = {}
    current: dict[str, int] = {}
    for record in coordination.log:
        name = record.transactional_id
        newest[name] = record
        if record.metadata is not None:
            producer_id, epoch = record.metadata.producer_id, record.metadata.producer_epoch
            owner = used.setdefault(producer_id, name)
            assert owner == name, f"d: producer id {producer_id} of {owner} and {name}"
            assert epoch >= epochs.get(producer_id, 0), f"d: the epoch of {producer_id} falls"
            assert producer_id >= current.get(name, 0), f"d: {producer_id} is used again"
            epochs[producer_id], current[name] = epoch, producer_id
    live = coordination.coordinator.transactions
    known = {name for name, one in live.items() if not one.is_new}
    assert known == {name for name, one in newest.items() if one.metadata is not None}, "b"
    for name in known:
        written = replace(newest[name], metadata=live[name].metadata)
        assert encode(written) == encode(newest[name]), f"b: {name} is not what the log says"


PARTITIONS = tuple(TopicPartition("t", index) for index in range(3))


class World:
    def __init__(
        self, level: int, epoch: int, versions: tuple[int, ...], rules: TransactionRules = SOUND
    ) -> None:
        self.models: dict[str, Model] = {}
        batches = []
        if epoch >= 0:
            self.models["x"] = Model((1001, epoch), 10_000)
            batches = [stored(producer_epoch=epoch)]
        self.clients = [Client("x", version) for version in versions] + [Client("y", 2)]
        self.under_way: dict[str, UnderWay] = {}
        self.asked: dict[int, Asked] = {}
        self.waiting = WaitingAdditions(self.asked)
        self.past: list[Asked] = []
        self.network = Network(PARTITIONS)
        self.partitions = self.network.partitions
        self.decisions: dict[Tag, bool] = {}
        self.had_late_requests = False
        self.seen_writes = 0
        self.changed_ms: dict[str, int] = {}
        self.counted: dict[str, int] = {}  # transactions of ids that have expired
        self.coordination = Coordination(transaction_version=level, batches=batches, rules=rules)
        self.coordination.allocates = False

    # --- Requests ---

    def ask(self, client: Client, request: Any, *, late: Asked | None = None) -> None:
        if late is None:
            asked = Asked.by(client, request)
            self.past.append(asked)
        else:
            asked = replace(late, is_late=True, is_replaced=client.is_replaced)
            self.had_late_requests = True
        verdict = kips.verdict_on(
            request,
            self.models.get(request.transactional_id),
            is_busy=request.transactional_id in self.under_way,
            now_ms=self.coordination.now_ms,
            level=self.coordination.transaction_version,
        )
        request_id = self.coordination.last_request_id + 1
        self.asked[request_id] = asked
        if isinstance(verdict, Change):
            assert request.transactional_id not in self.under_way
            self.under_way[request.transactional_id] = UnderWay(verdict, request_id)
        elif waits(request, verdict):
            self.waiting.add(self.coordination.now_ms, request_id, request)
        else:
            asked.expected = verdict
        self.coordination.ask(request)
        self.look()

    def ask_as_a_stranger(self, client: Client, request: Any) -> None:
        """Send a request with foreign ids; the client does not receive the response."""
        self.ask(client, request, late=Asked(client, request, NOBODY, -1, True, False))

    def produce(self, client: Client, where: TopicPartition) -> None:
        """The leader verifies, and appends if the partition is in the transaction."""
        model = self.models.get(client.name)
        if where not in self.partitions:
            return
        request = replace(verify(client.known_as, where), transactional_id=client.name)
        request_id = self.coordination.ask(request)
        [error_code] = self.coordination.replies.pop(request_id).partitions.values()
        refused = kips.fenced(model, client.producer)
        if refused is not None:
            assert error_code is refused.error_code, "a: a stranger is verified"
            return
        assert model is not None
        is_in = model.phase == "open" and where in model.partitions
        expected = ErrorCode.NONE if is_in else ErrorCode.TRANSACTION_ABORTABLE
        if model.phase == "decided":
            expected = ErrorCode.CONCURRENT_TRANSACTIONS
        assert error_code is expected, f"a: verified {error_code.name}"
        if error_code is ErrorCode.NONE:
            assert not client.is_replaced, "e: a replaced producer is verified"
            self.partitions[where].produce(client.producer, (client.name, model.number))

    # --- Acts of the coordinator ---

    def look(self) -> None:
        """Compare all events with the expected ones."""
        for write in self.coordination.writes[self.seen_writes :]:
            for record in records_of(write.records):
                self.see_appended(record)
        self.seen_writes = len(self.coordination.writes)
        for wanted in self.coordination.asked_for:
            self.see_allocation(wanted)
        for sent in self.coordination.markers:
            self.see_markers(sent)
        self.coordination.markers.clear()
        for request_id in sorted(self.asked.keys() & self.coordination.replies.keys()):
            asked = self.asked.pop(request_id)
            self.hear(request_id, asked, self.coordination.replies[request_id])

    def see_allocation(self, wanted: AllocateProducerId) -> None:
        name = wanted.transactional_id
        if name not in self.under_way:
            self.under_way[name] = UnderWay(self.timed_out(name))
        assert self.under_way[name].change.needs_id, "a: an id that nobody needs"

    def timed_out(self, name: str) -> Change:
        model = self.models[name]
        is_over = self.coordination.now_ms >= model.start_ms + model.timeout_ms
        assert model.phase == "open", f"a: {name} is {model.state}"
        assert is_over, "a: aborted too early"
        return kips.on_fence(model, self.coordination.transaction_version)

    def see_appended(self, record: TransactionRecord) -> None:
        name = record.transactional_id
        if record.metadata is None:
            self.see_tombstone(name)
            return
        if name not in self.under_way:
            model = self.models[name]
            if model.phase == "decided":
                self.check_marked(name, model)
                after = kips.completed(model)
                change = Change(lambda _new: after, lambda _after: kips.FINE)
            else:
                change = self.timed_out(name)
            self.under_way[name] = UnderWay(change)
        under_way = self.under_way[name]
        ended = under_way.after
        if ended is not None and self.waiting.may_begin_behind(name, ended):
            under_way.behind = self.waiting.end(name, ended, self.coordination.now_ms)
            assert under_way.behind is not None
            under_way = under_way.behind
        under_way.changed_ms = record.metadata.last_update_ms
        assert under_way.after is None, "a: a second record before the first is committed"
        under_way.after = under_way.change.after(self.coordination.last_producer_id)
        assert under_way.after.is_told_by(record.metadata), f"a: {record} for {under_way.after}"

    def see_tombstone(self, name: str) -> None:
        assert name not in self.under_way, "a: expires during a change"
        model, now_ms = self.models[name], self.coordination.now_ms
        assert model.phase == "idle", f"a: expires while {model.state}"
        idle_ms = now_ms - self.changed_ms.get(name, START_MS)
        assert idle_ms >= SETTINGS.transactional_id_expiration_ms, "a: expires too early"
        change = Change(lambda _new: model, lambda _after: kips.FINE)
        self.under_way[name] = UnderWay(change, after=model, is_tombstone=True)

    def check_marked(self, name: str, model: Model) -> None:
        for where in model.partitions & self.partitions.keys():
            still_open = self.partitions[where].data.get(model.producer[0], [])
            assert not still_open, f"c: complete, and {still_open} in {where} is open"

    def see_markers(self, sent: SendMarkers) -> None:
        model = self.models[sent.transactional_id]
        assert model.phase == "decided", f"c: markers while {model.state}"
        assert sent.commit is model.outcome, "c: markers of another outcome"
        assert tuple(sent.producer) == model.producer, "c: markers of another epoch"
        assert {*sent.partitions} <= model.partitions, "c: markers for strangers"
        assert sent.coordinator_epoch == self.coordination.leader_epoch
        assert sent.transaction_version == (2 if model.has_bumped else 0)
        self.network.send(sent)

    def hear(self, request_id: int, asked: Asked, result: Any) -> None:
        if isinstance(asked.request, AddPartitions):
            [error_code] = {*result.partitions.values()}
            told = NOBODY
        else:
            error_code, told = result.error_code, tuple(result.producer)
        has_waited = self.waiting.hear(request_id, asked, error_code, self.coordination.now_ms)
        if error_code in {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}:
            return  # the expected change is undone
        if has_waited and error_code is ErrorCode.CONCURRENT_TRANSACTIONS:
            return
        assert Answer(error_code, told) == asked.expected, f"a: {error_code.name} {told} {asked}"
        client, request = asked.client, asked.request
        if error_code is not ErrorCode.NONE or asked.is_late:
            return
        if not (isinstance(request, InitProducerId) and tuple(request.expected) == NOBODY):
            assert not asked.is_replaced, f"e: {asked}"
        if isinstance(request, AddPartitions):
            client.number = self.models[client.name].number
        elif isinstance(request, InitProducerId):
            client.producer, client.number = told, -1
        else:
            self.hear_end(asked, told)

    def hear_end(self, asked: Asked, told: kips.Producer) -> None:
        client, commit = asked.client, asked.request.commit
        is_sure = client.version == 2 or not self.had_late_requests
        if asked.number >= 0 and is_sure:
            assert self.decisions.get((client.name, asked.number)) is commit, "c: told otherwise"
        if told != NOBODY:
            client.producer = told
        client.number = -1

    # --- The log ---

    def end_write(self, *, is_refused: bool = False) -> None:
        if not self.coordination.writes:
            return
        records = records_of(self.coordination.writes[0].records)
        for record in records:
            self.see_ended(record.transactional_id, is_refused=is_refused)
        self.seen_writes -= 1
        if is_refused:
            self.coordination.fail_write()
        else:
            self.coordination.commit_write()
        self.look()

    def see_ended(self, name: str, *, is_refused: bool) -> None:
        under_way = self.under_way.pop(name, None)
        if under_way is None:
            return  # it was behind another, and was refused with that
        self.change(name, under_way, is_refused=is_refused)
        if under_way.behind is not None and not is_refused:
            self.under_way[name] = under_way.behind
        self.end_wait(name)

    def end_wait(self, name: str) -> None:
        model = self.models.get(name)
        is_busy = name in self.under_way or (model is not None and model.phase == "decided")
        made = None if is_busy else self.waiting.end(name, model, self.coordination.now_ms)
        if made is not None:
            self.under_way[name] = made

    def change(self, name: str, under_way: UnderWay, *, is_refused: bool) -> None:
        if is_refused:
            return
        after = under_way.after
        assert after is not None
        if under_way.is_tombstone:
            self.counted[name] = self.models.pop(name).number
            return
        before = self.models.get(name)
        number = self.counted.get(name, 0) if before is None else after.number
        self.models[name] = after = replace(after, number=number)
        self.changed_ms[name] = under_way.changed_ms
        if after.phase == "decided" and before is not None and before.phase == "open":
            self.decisions[name, after.number] = bool(after.outcome)
        for request_id in (under_way.request_id, *under_way.held):
            asked = self.asked.get(request_id or 0)
            if asked is not None:
                asked.expected = under_way.change.reply(after)
                self.note_replaced(asked, after)

    def note_replaced(self, asked: Asked, after: Model) -> None:
        """A producer that begins anew replaces the others of its id."""
        request = asked.request
        begins_anew = isinstance(request, InitProducerId) and tuple(request.expected) == NOBODY
        if begins_anew and after.state == "Empty":
            for client in (one for one in self.clients if one.name == asked.client.name):
                client.is_replaced = client is not asked.client

    def change_coordinator(self, survivors: int, *, skew_ms: int, is_same: bool) -> None:
        """The outcome of all writes is unknown to it; the first `survivors` are in the log."""
        coordination = self.coordination
        for write in coordination.writes[:survivors]:
            for record in records_of(write.records):
                self.see_ended(record.transactional_id, is_refused=False)
            coordination.batches.append(write.records)
        self.network.generation += 1
        self.under_way.clear()
        self.waiting.clear()
        for asked in self.asked.values():
            asked.expected = None
        if is_same and coordination.writes:
            coordination.asked_for.clear()
            coordination.end_write(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            coordination.writes.clear()
            self.seen_writes = 0
            self.network.deliver_older()
            self.forget_volatile()
            coordination.load()
        else:
            self.forget_volatile()
            successor = coordination.taken_over(now_ms=coordination.now_ms + skew_ms)
            successor.allocates = False
            successor.last_request_id = coordination.last_request_id
            self.asked.clear()
            self.coordination, self.seen_writes = successor, 0
        self.look()

    def forget_volatile(self) -> None:
        """Forget the fields that no record has, or no record of the old form."""
        versions = {one.transactional_id: one.value_version for one in self.coordination.log}
        for name, model in self.models.items():
            kept = model.before if versions[name] == 1 else None
            self.models[name] = replace(model, may_name=None, before=kept)

    # --- Markers ---

    def deliver(self, index: int, fate: str) -> None:
        """Let a marker arrive, or not; the coordinator learns the outcome, or not."""
        for event in self.network.arrive(index, fate):
            self.coordination.step(event)
        self.look()

    def answer(self, index: int) -> None:
        """Let an answer arrive, at the coordinator that is there now."""
        self.coordination.step(self.network.answer(index))
        self.look()

    def answer_in_time(self) -> None:
        """Let all responses to requests of this coordinator arrive."""
        while (index := self.network.first_in_time()) is not None:
            self.answer(index)

    def delete_partition(self, where: TopicPartition) -> None:
        """Delete it, or make another of that name."""
        if where in self.partitions:
            self.check_outcomes()
            self.network.delete(where)
            self.coordination.step(PartitionsDeleted(partitions=frozenset({where})))
            self.look()
        else:
            self.partitions[where] = Partition()

    # --- Time and producer ids ---

    def let_time_pass(self, elapsed_ms: int) -> None:
        self.coordination.tick(elapsed_ms)
        self.look()

    def set_level(self, level: int) -> None:
        """Change `transaction.version`."""
        self.coordination.transaction_version = level
        self.coordination.step(TransactionVersionChanged(transaction_version=level))

    def allocate(self, *, fails: bool = False) -> None:
        if not self.coordination.asked_for:
            return
        name = self.coordination.asked_for[0].transactional_id
        if fails:
            under_way = self.under_way.pop(name)
            asked = self.asked.get(under_way.request_id or 0)
            if asked is not None:
                asked.expected = Answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            self.end_wait(name)
        self.coordination.allocate(
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if fails else ErrorCode.NONE
        )
        self.look()

    # --- Invariants ---

    def check(self) -> None:
        check_log(self.coordination)
        self.check_outcomes()
        self.waiting.check(self.coordination.now_ms, self.under_way)
        awaited = self.network.awaited()
        deadlines = self.coordination.coordinator._deadlines
        for name, transaction in self.coordination.coordinator.transactions.items():
            is_cared_for = name in self.under_way or name in awaited or name in deadlines
            assert is_cared_for or not transaction.is_busy, f"c: nobody will end {name}"

    def check_outcomes(self) -> None:
        for partition in self.partitions.values():
            for tag, commit in partition.outcomes:
                assert self.decisions.get(tag) is commit, f"c: {tag} is {self.decisions.get(tag)}"

    def heal(self) -> None:
        """Everything that was begun ends, and all can begin anew."""
        for _ in range(20):
            while self.coordination.asked_for:
                self.allocate()
            while self.coordination.writes:
                self.end_write()
            while self.network.messages:
                self.deliver(0, "written")
            while self.network.answers:
                self.answer(0)
            self.let_time_pass(1000)
        while self.network.late:
            self.network.deliver_late()
        assert not self.under_way, "everything ends"
        assert not self.asked, "every request is answered"
        self.check()
        for name, model in self.models.items():
            assert model.phase == "idle", f"c: {name} is {model.state}"
        open_data = [one.data for one in self.partitions.values() if one.data]
        assert not open_data, f"c: {open_data} is open for ever"
