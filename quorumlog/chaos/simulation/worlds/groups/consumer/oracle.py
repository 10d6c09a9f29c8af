"""The rules of a consumer protocol group, checked from its members and the committed log.

It records the assignments, partitions, revocations and acknowledged commits of each member, and
reads the log of the offsets topic. It models KIP-848 and shares no rule with the coordinator. It
uses the clock of the broker that decides: a member may be removed once it is due by that clock.
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
    """A commit of some partitions by one member, at its own member epoch."""

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
    """The epoch and partitions of a static member when it left for a while."""

    epoch: int
    had: Partitions


@dataclass(slots=True, eq=False)
class Client:
    """One member, in its own view; each restart of the member has a new id and a new object.

    has: its partitions. It owns a partition from the response that assigns it until it revokes it
    or loses all: when it receives a fencing error, and when its process ends.
    told: the partitions of its last assignment.
    removals: the removals of its id when the log had a record of its current epoch.
    unproved: partitions assigned by a replaced coordinator (decision 58), and its partitions when
    the log removed it, or began a generation that it has not joined: it may not have noticed.
    served: when a broker read its last request that was served.
    read_as: the number of its last request that a broker has read, of all requests.
    behind: since when it may have partitions to revoke, by the clock of the broker; None after a
    response that leaves nothing to do. (A classic member: the time of the last such response.)
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
    is_new: bool = True  # it has received no assignment yet

    @property
    def kept(self) -> Partitions:
        """Its partitions that are still assigned to it."""
        return self.has & self.told

    @property
    def surplus(self) -> Partitions:
        """Its partitions that it must revoke."""
        return self.has - self.told


class ConsumerOracle:
    """A LogReader that also receives the events of members and brokers."""

    def __init__(
        self, log: GroupLog, hosts: Mapping[int, CoordinatorHost], deleted: set[str]
    ) -> None:
        """Attach to the log. `deleted`: names of topics whose offsets may be gone."""
        self._log: Final = log
        self._hosts: Final = hosts
        self._deleted: Final = deleted
        self._clients: Final[dict[str, Client]] = {}
        self._commits: Final[dict[str, MemberCommit]] = {}  # by tag
        self._undecided: Final[set[str]] = set()  # tags of commits in transactions
        self._acknowledged: Final[dict[TopicPartition, int]] = {}  # -> log offset of the last
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
        """Record a served request, read at `moment`; its response may be lost.

        `result` of a join: the generation whose leader receives the member's partitions.
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

        Only such a member may keep another one out (KIP-848). A broker must have read a request of
        it after the last request that it served to a classic owner.
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
        """Return the log offset of the last acknowledged commit, by partition."""
        return dict(self._acknowledged)

    # --- membership ---

    def begins(self, client: Client) -> Client:
        """Note that a member has this id from now on."""
        self._clients[client.member_id] = client
        return client

    def told(
        self, client: Client, epoch: int, assigned: Partitions | None, *, is_replaced: bool
    ) -> None:
        """Record a heartbeat response (KIP-848); `assigned` None: the assignment is unchanged.

        `is_replaced`: another coordinator had taken over before the response was sent.
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
        """Record a SyncGroup response; `ids`: its partitions by id, of topics that exist."""
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
        """Check that no other member owns a partition assigned to this one."""
        for other in self._clients.values():
            both = assigned & (other.has - other.unproved)
            if other is client or not both:
                continue
            if client.is_classic or other.is_classic:
                both = self._permanent(both)  # classic members have no topic ids
            names = f"{client.member_id} and {other.member_id}"
            check(not both, f"one-owner: {names} have {_shown(both)}")

    def _permanent(self, partitions: Partitions) -> Partitions:
        """Return the partitions whose topic name was never deleted."""
        return frozenset(
            one
            for one in partitions
            if not {name for name, _ in self._log.names_of(frozenset({one}))} & self._deleted
        )

    def _check_place(self, client: Client, assigned: Partitions) -> None:
        """Check that a returning static member has its old partitions, if the epoch is the same."""
        place = self._places.pop(client.instance_id or "", None)
        if place is not None and place.epoch == client.epoch:
            lost = self._permanent(place.had) - assigned
            rule = f"own-place: {client.instance_id} is back as {client.member_id}"
            check(not lost, f"{rule}, without {_shown(lost)}")

    def rests(self, client: Client, moment: Moment) -> None:
        """Record a response that leaves a member nothing to do."""
        client.behind = moment if client.is_classic else None

    def gives_up(self, client: Client, partitions: Partitions) -> None:
        """Record that a member has revoked partitions. It reports so later."""
        client.has -= partitions
        client.unproved -= partitions

    def loses_all(self, client: Client) -> None:
        """Record that a member received a fencing error, or that its process ended."""
        client.has = client.told = client.unproved = NO_PARTITIONS
        client.epoch = 0

    def leaves(self, client: Client, *, for_a_while: bool) -> None:
        """Record that a member gives up all partitions and sends its leave."""
        if for_a_while and client.instance_id is not None and not client.is_new:
            self._places[client.instance_id] = Place(client.epoch, client.kept)
        client.has_left = not for_a_while
        self.loses_all(client)

    # --- the log ---

    def removed(self, member_id: str, leader_epoch: int) -> None:
        """Check that a member that the log removes has left, or is silent or late."""
        for instance_id in self._places.keys() - self._log.members.values():
            del self._places[instance_id]
        client = self._clients.get(member_id)
        if client is None:  # the response with its id never arrived
            return
        client.unproved |= client.has
        is_replaced = client.instance_id and client.instance_id in self._log.members.values()
        if client.has_left or is_replaced:
            return
        self._check_due("removed-early", client, leader_epoch)

    def generation_began(self, stored: StoredGroup, leader_epoch: int) -> None:
        """Mark the partitions of static members that did not join this generation as unproved.

        Such a member keeps its place in the group until its session ends, as in Kafka, and loses
        all when it learns of the generation. The leader used its last JoinGroup.
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
        """Check that a committed offset has the member epoch of its place in the log.

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
        """Record a commit that may be appended to the log."""
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
        """Compare fetched offsets with those acknowledged when the broker read the request.

        A replaced coordinator may lack some.
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
        """Compare the offsets of the last coordinator with all acknowledged commits."""
        self.fetched(shown, self._acknowledged, is_replaced=False)

    def is_at_rest(self, clients: Iterable[Client], subscribed: Partitions) -> bool:
        """Return whether each partition has one owner, and the log has the same assignments."""
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
    """Return when a member's timeout began on this shard; a load restarts it."""
    if moment is None or (moment.node_id, moment.load) != (host.node_id, load):
        return load.since_ms
    return max(moment.at_ms, load.since_ms)


def _shown(partitions: Partitions | None) -> str:
    if partitions is None:
        return "no new partitions"
    return " ".join(sorted(map(_name, partitions)))


def _name(one: TopicIdPartition) -> str:
    return f"{one.topic_id[2:].decode().strip('.')}-{one.partition}"
