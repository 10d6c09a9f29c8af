"""The rules of replicated partitions, checked from outside all brokers, after every step.

It has the records of each log, the high watermarks, the acknowledgements of producers, and the ISR
and ELR of the metadata. It models the system and shares no code with the cores.
Only one process leads in a leader epoch: a restart needs a new epoch (decision 13).
Sources: KIP-101 (replicas agree), KIP-497 and KIP-966 (ISR and ELR hold all committed records).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Final, NamedTuple

from quorumlog.chaos.simulation.kernel.rules import check
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.chaos.simulation.worlds.brokers.durable_records import durable_entries
from quorumlog.chaos.simulation.worlds.brokers.topic_lives import TopicLives
from quorumlog.chaos.simulation.worlds.entries import Entry
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition

SEQUENCED: Final = b"sequence "
"""The prefix of the idempotent producer's values; the number follows."""


class Members(NamedTuple):
    """The brokers that must hold all committed records, and the leader epoch."""

    holders: tuple[int, ...]  # ISR and ELR
    leader_epoch: int


class _NewHistory(NamedTuple):
    """An unclean election: only the committed records that its leader holds remain."""

    leader: int
    leader_epoch: int
    has_led: bool = False  # before that, its log may still truncate records of the old leader


_NOBODY: Final = Members((), -1)
Place = tuple[int, TopicPartition]  # a replica


class ReplicationOracle:
    """The facts that may never change, over all brokers and crashes.

    - per replica: the records of its log, and how many of them equal the committed ones;
    - per partition: the records that were ever committed, and the acknowledged ones;
    - the deleted topics: a re-created topic has places of its own;
    - the brokers that have lost unflushed records and are not registered again yet. The metadata
      may still name them.

    An unclean election, if it is allowed, starts a new history: it may lose the records that its
    leader lacks, and those that leaders of earlier epochs still commit. The rules then hold as
    before; only the idempotent producer starts anew, with another producer id.
    """

    def __init__(
        self, *, may_lose: bool = False, disks: Mapping[int, SimDisk] | None = None
    ) -> None:
        """`disks`: of brokers that commit only flushed records; they lose power at any time."""
        self.topics: Final = TopicLives()
        self.new_histories: Final[dict[TopicPartition, int]] = defaultdict(int)  # how many
        self.committed: Final[dict[TopicPartition, list[Entry]]] = defaultdict(list)
        self.acknowledged: Final[dict[TopicPartition, dict[int, bytes]]] = defaultdict(dict)
        self.logs: Final[dict[Place, list[Entry]]] = defaultdict(list)
        self.members: Final[dict[TopicPartition, Members]] = {}
        self.lossy: Final[set[int]] = set()
        self._may_lose: Final = may_lose
        self._disks: Final = disks
        self._histories: Final[dict[TopicPartition, _NewHistory]] = {}
        self._lost: Final[dict[TopicPartition, set[tuple[int, bytes]]]] = defaultdict(set)
        self._lives: Final[dict[int, int]] = defaultdict(int)  # ended processes by broker
        self._led: Final[dict[tuple[TopicPartition, int], tuple[int, int]]] = {}  # process by epoch
        self._shortened: Final[set[Place]] = set()  # logs that a power loss may have cut
        self._agreed: Final[dict[Place, int]] = defaultdict(int)
        self._high_watermarks: Final[dict[Place, int]] = defaultdict(int)

    # --- logs ---

    def appended(self, broker_id: int, at: TopicPartition, entries: Iterable[Entry]) -> None:
        """Append entries to a replica's log."""
        self.logs[broker_id, at] += entries

    def truncated(self, broker_id: int, at: TopicPartition, end: int) -> None:
        """Truncate a replica's log at `end`."""
        place = broker_id, at
        del self.logs[place][end:]
        self._agreed[place] = min(self._agreed[place], end)
        self._maybe_rewind(broker_id, at)
        self._check_holders(at)

    def removed(self, broker_id: int, at: TopicPartition) -> None:
        """Record that a broker dropped a replica; its files are deleted a little later."""
        place = broker_id, at
        self._shortened.add(place)
        self._high_watermarks[place] = 0

    def are_of(
        self, broker_id: int, at: TopicPartition, topic_id: TopicId, entries: list[Entry]
    ) -> bool:
        """Return whether no other topic of that name shares more of these records here."""
        own = self.topics.place_of(at, topic_id)
        shared = {
            place: _common(self.logs.get((broker_id, place), []), entries)
            for place in self.topics.places_of(at)
        }
        return shared[own] == max(shared.values())

    def stopped(self, broker_id: int, *, loses_power: bool) -> None:
        """Record the end of a process; a power loss drops its unflushed records."""
        self._lives[broker_id] += 1
        if loses_power:
            if self._disks is None:
                self.lossy.add(broker_id)
            self._shortened.update(place for place in self.logs if place[0] == broker_id)
        for place in self._high_watermarks:
            if place[0] == broker_id:
                self._high_watermarks[place] = 0
        for at in self.members:
            self._check_disks(at, 0, of=broker_id)

    def recovered(self, broker_id: int, at: TopicPartition, entries: list[Entry]) -> None:
        """Compare the recovered records of a log with those that were appended to it."""
        place = broker_id, at
        before = self.logs[place]
        check(
            entries == before[: len(entries)],
            f"recovery: {broker_id} finds unwritten records in {at}",
        )
        is_whole = len(entries) == len(before) or place in self._shortened
        self._shortened.discard(place)
        check(is_whole, f"durability: {broker_id} lost records of {at}, but not its power")
        self.logs[place] = entries
        self._agreed[place] = min(self._agreed[place], len(entries))
        self._maybe_rewind(broker_id, at)

    # --- metadata ---

    def registered(self, broker_id: int) -> None:
        """Record that a broker registered: the metadata accounts for its lost records."""
        self.lossy.discard(broker_id)

    def elected(self, at: TopicPartition, members: Members) -> None:
        """Record the holders and the leader epoch of a partition in the metadata."""
        self.members[at] = members
        self._check_holders(at)

    def elected_uncleanly(self, at: TopicPartition, leader: int, leader_epoch: int) -> None:
        """Record the election of a leader that may lack committed records."""
        check(self._may_lose, f"unclean: {leader} was elected for {at}, which allows no loss")
        self.new_histories[at] += 1
        self._histories[at] = _NewHistory(leader, leader_epoch)
        self._maybe_rewind(leader, at)

    def _maybe_rewind(self, broker_id: int, at: TopicPartition) -> None:
        """Drop the committed records that the leader of a new history lacks."""
        history = self._histories.get(at)
        if history is None or history.has_led or history.leader != broker_id:
            return
        committed, end = self.committed[at], self._agreement(broker_id, at)
        for offset in range(end, len(committed)):
            self._lost[at].add((offset, committed[offset].content))
            self.acknowledged[at].pop(offset, None)
        del committed[end:]
        for place in self._agreed:
            if place[1] == at:
                self._agreed[place] = min(self._agreed[place], end)

    def _is_of_old_history(
        self, broker_id: int, at: TopicPartition, end: int, *, leads: bool, leader_epoch: int
    ) -> bool:
        """Return whether an unclean election allows the loss of this high watermark."""
        history, lost, place = self._histories.get(at), self._lost[at], (broker_id, at)
        if history is None:
            return False
        if leader_epoch >= history.leader_epoch:
            if leads and broker_id == history.leader:
                self._histories[at] = history._replace(has_led=True)
            # A follower may have received these commits before the election.
            start = self._agreement(broker_id, at)
            return not leads and start < end and self._old_commits(place, end).issubset(lost)
        lost |= self._old_commits(place, end)
        return True

    def _old_commits(self, place: Place, end: int) -> set[tuple[int, bytes]]:
        """Return the records below `end` in a replica that are not committed any more."""
        start, log = self._agreement(*place), self.logs[place]
        return {(offset, log[offset].content) for offset in range(start, end)}

    def new_beginnings(self, at: TopicPartition) -> int:
        """Return the number of unclean elections and re-creations of a partition."""
        places = self.topics.places_of(at)
        return len(places) - 1 + sum(self.new_histories[place] for place in places)

    def deleted(self, at: TopicPartition) -> None:
        """Record the deletion of a partition: no broker must hold its records any more."""
        self.members.pop(at, None)

    def _check_holders(self, at: TopicPartition) -> None:
        """Check that every member of ISR and ELR holds all committed records."""
        committed = self.committed[at]
        for member in self.members.get(at, _NOBODY).holders:
            if member not in self.lossy:
                held = self._agreement(member, at)
                rule = f"isr-complete: {member} is in ISR or ELR of {at} with {held} of"
                check(held == len(committed), f"{rule} {len(committed)} committed records")

    def _check_disks(self, at: TopicPartition, start: int, of: int | None = None) -> None:
        """Check that the disk of every member has all committed records from `start` on.

        `of`: check only this broker, if it is a member.
        """
        committed, log = self.committed[at][start:], self.topics.log_of(at)
        if self._disks is None or not committed:
            return
        for member in self.members.get(at, _NOBODY).holders:
            if of in {None, member}:
                durable = durable_entries(self._disks[member], log, start)
                rule = f"commit-durable: the disk of {member} lacks committed records of {at}"
                check(durable[: len(committed)] == committed, f"{rule} from {start} on")

    def _agreement(self, broker_id: int, at: TopicPartition) -> int:
        """Return how many first records of a replica equal the committed ones."""
        place = broker_id, at
        log, committed, agreed = self.logs[place], self.committed[at], self._agreed[place]
        end = min(len(log), len(committed))
        while agreed < end and log[agreed] == committed[agreed]:
            agreed += 1
        self._agreed[place] = agreed
        return agreed

    # --- commits ---

    def showed(
        self, broker_id: int, at: TopicPartition, end: int, *, leads: bool, leader_epoch: int
    ) -> None:
        """Record a replica's high watermark, in its own leader epoch."""
        place = broker_id, at
        history = self._histories.get(at)
        begins = history is not None and leads and not history.has_led
        if end == self._high_watermarks[place] and not begins:
            return
        self._high_watermarks[place] = end
        log, committed = self.logs[place], self.committed[at]
        check(end <= len(log), f"commit-held: {broker_id} shows {end} of {len(log)} in {at}")
        if leads:
            self._check_process(broker_id, at, leader_epoch)
        if self._is_of_old_history(broker_id, at, end, leads=leads, leader_epoch=leader_epoch):
            return
        is_known = end <= len(committed)
        check(leads or is_known, f"commit-led: follower {broker_id} commits {end} of {at} first")
        common = min(end, len(committed))
        rule = f"commit-agreed: {broker_id} shows other records below {common} of {at}"
        check(self._agreement(broker_id, at) >= common, rule)
        if not is_known:
            new = log[len(committed) : end]
            self._check_sequences(at, new)
            start = len(committed)
            committed += new
            self._check_holders(at)
            self._check_disks(at, start)

    def _check_process(self, broker_id: int, at: TopicPartition, leader_epoch: int) -> None:
        """Check that one process commits in a leader epoch."""
        process = broker_id, self._lives[broker_id]
        first = self._led.setdefault((at, leader_epoch), process)
        rule = f"one-process: {process} leads {at} in epoch {leader_epoch}"
        check(first == process, f"{rule}, as {first} did")

    def _check_sequences(self, at: TopicPartition, new: list[Entry]) -> None:
        """Check that the records of each producer id are committed once and in order.

        After an unclean election, and in a re-created topic, a producer id may begin anywhere: its
        first records may be lost.
        """
        begins_anywhere = at in self._histories or self.topics.is_later(at)
        expected: dict[int, int] = {}
        for entry in new:
            if not entry.content.startswith(SEQUENCED):
                continue
            found, producer_id = _sequence(entry), entry.producer_id
            if producer_id not in expected:
                first = found if begins_anywhere else 0
                expected[producer_id] = self._last_sequence(at, producer_id, first - 1) + 1
            after = expected[producer_id] - 1
            check(found == after + 1, f"exactly-once: {found} in {at}, after {after}")
            expected[producer_id] += 1

    def _last_sequence(self, at: TopicPartition, producer_id: int, default: int) -> int:
        """Return the last committed sequence of a producer id."""
        for entry in reversed(self.committed[at]):
            if entry.producer_id == producer_id and entry.content.startswith(SEQUENCED):
                return _sequence(entry)
        return default

    def acknowledge(self, at: TopicPartition, offset: int, value: bytes) -> None:
        """Record that a producer received an acknowledgement of its record at this offset."""
        for place in self.topics.places_of(at):  # the response names no topic id
            committed = self.committed[place]
            if offset < len(committed) and committed[offset].content == value:
                self.acknowledged[place][offset] = value
                return
        is_lost = any((offset, value) in self._lost[one] for one in self.topics.places_of(at))
        check(is_lost, f"acked-committed: {value!r} was acknowledged at {offset} of {at}")

    def finish(self) -> None:
        """Compare all replicas with the committed and acknowledged records at the end."""
        for (broker_id, at), log in self.logs.items():
            if broker_id not in self.members.get(at, _NOBODY).holders:
                continue
            check(log == self.committed[at], f"converged: {broker_id} differs in {at}")
            for offset, value in self.acknowledged[at].items():
                check(log[offset].content == value, f"acked-lost: {offset} of {at} on {broker_id}")


def _common(one: list[Entry], other: list[Entry]) -> int:
    """Return the length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _sequence(entry: Entry) -> int:
    return int(entry.content.removeprefix(SEQUENCED))
