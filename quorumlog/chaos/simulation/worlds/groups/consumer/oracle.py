"""What a group of the consumer protocol must keep to, seen from its members and the committed log.

It knows what each member was told, has and gave up, what was acknowledged to it, and what the log
of the offsets topic says. It models KIP-848 and shares no rule with the coordinator. Times are
those of the broker that decides: a member may be removed once that broker's own clock says so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from quorumlog.broker.groups.core.consumer.partitions import (
    NO_PARTITIONS,
    Partitions,
    TopicIdPartition,
)
from quorumlog.broker.groups.core.records import StoredGroup
from quorumlog.broker.groups.core.requests import JoinResult
from quorumlog.chaos.simulation.kernel.rules import Violation, check
from quorumlog.chaos.simulation.worlds.groups.consumer.group_log import GroupLog, Named
from quorumlog.chaos.simulation.worlds.groups.coordinator_host import CoordinatorHost, Load, Moment
from quorumlog.chaos.simulation.worlds.groups.oracle import Position
from quorumlog.wire.codec.identifiers import TopicPartition

Positions = Mapping[TopicPartition, Position]


class MemberCommit(NamedTuple):
    """A commit of some partitions by one member, at the epoch that it knew."""

    member_id: str
    epoch: int
    positions: Positions


class Joined(NamedTuple):
    """A classic member has joined a generation of this shard."""

    member_id: str
    generation_id: int
    node_id: int
    load: Load


class Place(NamedTuple):
    """What a static member had when it left for a while."""

    epoch: int
    had: Partitions


@dataclass(slots=True, eq=False)
class Client:
    """One member as it knows itself; it has a new id, and another object, whenever it begins anew.

    has: what it consumes. It owns a partition from when it is told to have it until it gives it up,
    or loses all: when it was told that it is fenced, and when its process ends.
    removals: after how many of its removals the log said the epoch that it knows.
    unproved: what a coordinator told it that had been replaced (decision 53), and what it had when
    the log left it out, or went on to a generation that it has not joined: it may not know yet.
    served: when its last request was read that was served.
    read_as: the number of its last request that a broker has read, of all requests.
    behind: since when it may have something to do, by the clock of the broker: it is None once it
    hears that there is nothing. (A classic member: when that was last so.)
    """

    member_id: str
    instance_id: str | None
    is_classic: bool
    session_ms: int
    rebalance_ms: int
    epoch: int = 0
    removals: int = 0
    has: Partitions = NO_PARTITIONS
    told: Partitions = NO_PARTITIONS
    unproved: Partitions = NO_PARTITIONS
    served: Moment | None = None
    read_as: int = 0
    behind: Moment | None = None
    has_left: bool = False
    is_new: bool = True  # it was told nothing yet

    @property
    def kept(self) -> Partitions:
        """What it has, and goes on to have."""
        return self.has & self.told

    @property
    def surplus(self) -> Partitions:
        """What it has to give up."""
        return self.has - self.told


class ConsumerOracle:
    """A LogReader, and what members and brokers tell."""

    def __init__(
        self, log: GroupLog, hosts: Mapping[int, CoordinatorHost], deleted: set[str]
    ) -> None:
        """Know nothing yet. `deleted`: names of topics whose offsets may be gone."""
        self._log: Final = log
        self._hosts: Final = hosts
        self._deleted: Final = deleted
        self._clients: Final[dict[str, Client]] = {}
        self._commits: Final[dict[str, MemberCommit]] = {}  # by tag
        self._undecided: Final[set[str]] = set()  # tags of commits in transactions
        self._acknowledged: Final[dict[TopicPartition, int]] = {}  # -> the last log offset
        self._places: Final[dict[str, Place]] = {}  # by instance id
        self._joined: Final[set[Joined]] = set()
        self._reads = 0
        self._classic_since: Final[dict[str, int]] = {}  # instance id -> `read_as` of the owner
        log.reader = self

    # --- the side of the brokers ---

    def read(self, client: Client, moment: Moment) -> None:
        """Note that a broker reads a request of a member."""
        self._reads += 1
        client.read_as = self._reads
        if client.behind is None:
            client.behind = moment

    def served(
        self,
        client: Client,
        moment: Moment,
        result: object = None,
        *,
        is_replaced: bool = False,
    ) -> None:
        """Note that the request that was read then is served. Its member may not hear of it.

        `result` of a join: the generation whose leader hears what the member has.
        """
        if client.is_classic and client.instance_id is not None and not is_replaced:
            self._classic_since[client.instance_id] = client.read_as
        self._log.read_on()
        client.served = moment
        if isinstance(result, JoinResult):
            shard = moment.node_id, moment.load
            self._joined.add(Joined(result.member_id, result.generation_id, *shard))

    def kept_out(self, client: Client) -> None:
        """Check that a present member of the consumer protocol may own the instance id.

        Only such a member keeps another one out (KIP-848). A request of it was read after the last
        classic owner was served.
        """
        since = self._classic_since.get(client.instance_id or "", 0)
        owners = [
            other.member_id
            for other in self._clients.values()
            if other.instance_id == client.instance_id
            and other is not client
            and not other.is_classic
            and other.read_as > since
        ]
        rule = f"kept-out: {client.member_id} may not be {client.instance_id}"
        check(bool(owners), f"{rule}, whose last owner is a classic member or gone")

    def acknowledged(self) -> Mapping[TopicPartition, int]:
        """Return the log offset of the last commit that was acknowledged, by partition."""
        return dict(self._acknowledged)

    # --- membership ---

    def begins(self, client: Client) -> Client:
        """Note that a member has this id from now on."""
        self._clients[client.member_id] = client
        return client

    def told(
        self, client: Client, epoch: int, assigned: Partitions | None, *, is_replaced: bool
    ) -> None:
        """Note what a member of KIP-848 hears; `assigned` None: the same as before.

        `is_replaced`: another coordinator had taken over when the answer was given.
        """
        self._log.read_on()
        said = self._log.said[client.member_id, epoch]
        is_said = assigned in said if assigned is not None else bool(said)
        rule = f"told-committed: {client.member_id} receives {_shown(assigned)} in {epoch}"
        check(is_said, f"{rule}, which is not in the log")
        self._takes(client, epoch, assigned, is_replaced=is_replaced)

    def synced(
        self,
        client: Client,
        generation_id: int,
        named: Named,
        ids: Partitions,
        *,
        is_replaced: bool,
    ) -> None:
        """Note what a classic member hears; `ids`: the same by the ids of topics that exist."""
        self._log.read_on()
        said = self._log.said_by_name[client.member_id, generation_id]
        rule = f"told-committed: {client.member_id} receives {sorted(named)} in {generation_id}"
        check(any(named <= one for one in said), f"{rule}, which is not in the log")
        self._takes(client, generation_id, ids, is_replaced=is_replaced)

    def _takes(
        self, client: Client, epoch: int, assigned: Partitions | None, *, is_replaced: bool
    ) -> None:
        falls = f"epoch-rises: {client.member_id} comes from {client.epoch} to {epoch}"
        removals = self._log.said_after[client.member_id, epoch]
        check((removals, epoch) >= (client.removals, client.epoch), falls)
        client.removals, client.epoch = removals, epoch
        if assigned is None:
            return
        if client.is_new and client.instance_id is not None:
            self._check_place(client, assigned)
        client.is_new = False
        client.told = assigned
        if is_replaced or client.member_id not in self._log.members:
            client.unproved |= assigned - client.has
        else:
            client.unproved -= assigned
            self._check_owners(client, assigned)
        client.has |= assigned

    def _check_owners(self, client: Client, assigned: Partitions) -> None:
        """Check that no other member has what this one is told to have."""
        for other in self._clients.values():
            both = assigned & (other.has - other.unproved)
            if other is client or not both:
                continue
            if client.is_classic or other.is_classic:
                both = self._permanent(both)  # they know no ids of topics
            names = f"{client.member_id} and {other.member_id}"
            check(not both, f"one-owner: {names} have {_shown(both)}")

    def _permanent(self, partitions: Partitions) -> Partitions:
        """Leave out those of a name of which a topic was deleted."""
        return frozenset(
            one
            for one in partitions
            if not {name for name, _ in self._log.names_of(frozenset({one}))} & self._deleted
        )

    def _check_place(self, client: Client, assigned: Partitions) -> None:
        """Check that a static member that is back has what it had, if no epoch has begun."""
        place = self._places.pop(client.instance_id or "", None)
        if place is not None and place.epoch == client.epoch:
            lost = self._permanent(place.had) - assigned
            rule = f"own-place: {client.instance_id} is back as {client.member_id}"
            check(not lost, f"{rule}, without {_shown(lost)}")

    def rests(self, client: Client, moment: Moment) -> None:
        """Note that a member hears that there is nothing to do."""
        client.behind = moment if client.is_classic else None

    def gives_up(self, client: Client, partitions: Partitions) -> None:
        """Note that a member has these no longer. It says so later."""
        client.has -= partitions
        client.unproved -= partitions

    def loses_all(self, client: Client) -> None:
        """Note that a member knows that it is fenced, or that its process has ended."""
        client.has = client.told = client.unproved = NO_PARTITIONS
        client.epoch = 0

    def leaves(self, client: Client, *, for_a_while: bool) -> None:
        """Note that a member has given all up, and says that it leaves."""
        if for_a_while and client.instance_id is not None and not client.is_new:
            self._places[client.instance_id] = Place(client.epoch, client.kept)
        client.has_left = not for_a_while
        self.loses_all(client)

    # --- the log ---

    def removed(self, member_id: str, leader_epoch: int) -> None:
        """Check that a member that the log leaves out has left, or is silent or late."""
        for instance_id in self._places.keys() - self._log.members.values():
            del self._places[instance_id]
        client = self._clients.get(member_id)
        if client is None:  # it was given an id that it has never heard of
            return
        client.unproved |= client.has
        is_replaced = client.instance_id and client.instance_id in self._log.members.values()
        if client.has_left or is_replaced:
            return
        self._check_due("removed-early", client, leader_epoch)

    def generation_began(self, stored: StoredGroup, leader_epoch: int) -> None:
        """Let nothing count that a static member has which is too late for this generation.

        It keeps its place in the group until its session ends, as in Kafka, and loses all when it
        hears of the generation. The leader knows of it what it said when it last joined.
        """
        host = self._host_of(leader_epoch)
        shard = host.node_id, host.loads[leader_epoch]
        for member in stored.members:
            client = self._clients.get(member.member_id)
            if client is None or client.instance_id is None or not client.has:
                continue
            if Joined(client.member_id, stored.generation_id, *shard) not in self._joined:
                self._check_due("passed-over-early", client, leader_epoch)
                client.unproved |= client.has

    def _host_of(self, leader_epoch: int) -> CoordinatorHost:
        return next(one for one in self._hosts.values() if leader_epoch in one.loads)

    def _check_due(self, rule: str, client: Client, leader_epoch: int) -> None:
        """Check that a member is silent or late, by the clock of the broker of that epoch."""
        host = self._host_of(leader_epoch)
        load, now_ms = host.loads[leader_epoch], host.now_ms()
        silent_ms = now_ms - _since(client.served, host, load)
        late_ms = -1 if client.behind is None else now_ms - _since(client.behind, host, load)
        is_due = silent_ms >= client.session_ms or late_ms >= client.rebalance_ms
        times = f"silent for {silent_ms} ms, late by {late_ms} ms"
        check(is_due, f"{rule}: {client.member_id} was {times}")

    def stored(self, tag: str) -> None:
        """Check that this was committed by a member, at its epoch where the log has the commit.

        A member of the consumer protocol may be at an older epoch, if it has owned the partition
        since then (KIP-1251).
        """
        commit = self._commits.get(tag)
        if commit is None:
            return
        member_id, epoch = commit.member_id, self._log.epochs.get(commit.member_id)
        if epoch == commit.epoch:
            return
        rule = f"stale-commit: {member_id} committed {tag} at {commit.epoch}"
        may_be_older = epoch is not None and epoch > commit.epoch and self._is_consumer(member_id)
        check(may_be_older, f"{rule}, where the log has {epoch}")
        [where] = [where for where, one in commit.positions.items() if one.tag == tag]
        since = self._log.since.get(member_id, {}).get(where)
        has_owned = since is not None and since <= commit.epoch
        check(has_owned, f"{rule}, and has owned {where} since {since}")

    def _is_consumer(self, member_id: str) -> bool:
        client = self._clients.get(member_id)
        return client is not None and not client.is_classic

    # --- commits ---

    def sends(self, commit: MemberCommit) -> None:
        """Note a commit that may come into the log."""
        for position in commit.positions.values():
            self._commits[position.tag] = commit

    def began(self, commit: MemberCommit) -> None:
        """Note that a commit counts only if its transaction is committed."""
        self._undecided.update(position.tag for position in commit.positions.values())

    def decided(self, commit: MemberCommit) -> None:
        """Note that the transaction of a commit is committed."""
        self._undecided.difference_update(one.tag for one in commit.positions.values())

    def acknowledge(self, commit: MemberCommit) -> None:
        """Note that a commit was acknowledged."""
        self._log.read_on()
        for where, position in commit.positions.items():
            log_offset = self._log.offsets.get(position.tag)
            if log_offset is None:
                raise Violation(f"acked-committed: {position} of {where} is not in the log")
            self._acknowledged[where] = max(log_offset, self._acknowledged.get(where, -1))

    def fetched(
        self, shown: Positions, acknowledged: Mapping[TopicPartition, int], *, is_replaced: bool
    ) -> None:
        """Compare the offsets that were shown with what was acknowledged when they were asked for.

        A coordinator that had been replaced may lack some.
        """
        self._log.read_on()
        for where, position in shown.items():
            is_decided = position.tag not in self._undecided
            rule = f"transaction-shown: {position} of {where} is not of a committed one"
            check(is_decided, rule)
            rule = f"fetched-committed: {position} of {where} is not in the log"
            check(position.tag in self._log.offsets, rule)
        for where, wanted in () if is_replaced else acknowledged.items():
            if where.topic not in self._deleted:
                found = self._log.offsets[shown[where].tag] if where in shown else -1
                rule = f"offset-lost: the offset returned for {where} is at {found} in the log"
                check(found >= wanted, f"{rule}, the acknowledged offset at {wanted}")

    def finish(self, shown: Positions) -> None:
        """Compare what the last coordinator shows with all that was acknowledged."""
        self.fetched(shown, self._acknowledged, is_replaced=False)

    def is_at_rest(self, clients: Iterable[Client], subscribed: Partitions) -> bool:
        """Tell whether each partition has one owner, and the log says what members have."""
        self._log.read_on()
        had = sorted(one for client in clients for one in client.has)
        return had == sorted(subscribed) and all(map(self._is_reconciled, clients))

    def _is_reconciled(self, client: Client) -> bool:
        log, member_id = self._log, client.member_id
        if not log.is_consumer_group:
            said = log.said_by_name[member_id, log.epochs.get(member_id, -1)]
            return log.names_of(client.has) in said
        return client.has == log.targets.get(member_id) == log.currents.get(member_id)


def _since(moment: Moment | None, host: CoordinatorHost, load: Load) -> int:
    """Return since when a member has had its time, for a shard: it begins anew with a load."""
    if moment is None or (moment.node_id, moment.load) != (host.node_id, load):
        return load.since_ms
    return max(moment.at_ms, load.since_ms)


def _shown(partitions: Partitions | None) -> str:
    if partitions is None:
        return "no new partitions"
    return " ".join(sorted(map(_name, partitions)))


def _name(one: TopicIdPartition) -> str:
    return f"{one.topic_id[2:].decode().strip('.')}-{one.partition}"
