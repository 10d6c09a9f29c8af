"""One group member of either protocol, on a machine of its own.

Each of its lives chooses a protocol anew: so groups are upgraded and downgraded while in use. It
revokes partitions at once, slowly, or not at all until it is fenced.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from quorumlog.broker.groups.core.consumer.partitions import Partitions, TopicIdPartition
from quorumlog.broker.groups.core.requests import CommitOffsets, CommittedOffset
from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.kernel.run import Environment
from quorumlog.chaos.simulation.worlds.groups.cluster import Cluster, positions_by_name
from quorumlog.chaos.simulation.worlds.groups.commits import Commits
from quorumlog.chaos.simulation.worlds.groups.consumer.group_log import Named
from quorumlog.chaos.simulation.worlds.groups.consumer.heartbeating import Heartbeating
from quorumlog.chaos.simulation.worlds.groups.consumer.joining import Joining
from quorumlog.chaos.simulation.worlds.groups.consumer.oracle import (
    Client,
    ConsumerOracle,
    MemberCommit,
)
from quorumlog.chaos.simulation.worlds.groups.consumer.speaking import (
    CLASSIC_SUBSCRIPTIONS,
    OUT,
    REBALANCE_MS,
    SUBSCRIPTIONS,
    Answered,
    Speaker,
    Subscription,
)
from quorumlog.chaos.simulation.worlds.groups.consumer.topics import TopicCatalogue
from quorumlog.chaos.simulation.worlds.groups.coordinator_host import (
    SESSION_MS,
    CoordinatorHost,
    Offsets,
)
from quorumlog.chaos.simulation.worlds.groups.member_process import (
    BACKOFF_US,
    GROUP_ID,
    HEARTBEAT_US,
    REQUEST_TIMEOUT_US,
    MemberProcess,
)
from quorumlog.chaos.simulation.worlds.groups.oracle import Position
from quorumlog.chaos.simulation.worlds.groups.transactions import TransactionCoordinator
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition


class MemberOptions(NamedTuple):
    """The options of a member.

    classic_share: the share of its lives with the classic protocol. begins_classic: in its first.
    chooses_in_the_end: it subscribes anew after the last change of the topics.
    leaves_for_good: it leaves for good after that change.
    """

    commit_every_us: int
    is_static: bool
    classic_share: float
    begins_classic: bool
    chooses_in_the_end: bool
    leaves_for_good: bool


LEAVES: Final = 0.06  # the chance that a member leaves instead of a commit
SUBSCRIBES_ANEW: Final = 0.04
RETURNS_ANEW: Final = 0.5  # the chance that a static member comes back for other topics
OLD_COMES: Final = 0.1  # the chance that an old heartbeat and an old commit are sent again
REMEMBERED: Final = 8  # commits that may be sent again
AWAY_US_MAX: Final = (SESSION_MS * 500, 1_000_000)  # with the silence before: longer than a session
CHOOSES: Final = 0.1  # the chance that a static member makes its final subscription now
CHOOSES_GIVING_UP: Final = 0.7  # the same, while it has partitions to revoke
SOON_US: Final = 1_000


class Fetch(NamedTuple):
    """OffsetFetch, with the epoch of the member (KIP-848)."""

    member_id: str | None
    member_epoch: int


class Asked(NamedTuple):
    """A request about the membership in flight, sent by `client`."""

    request: Any
    client: Client


class GroupMember(MemberProcess):
    """A Process, a Client of the brokers' world, and a Life for its protocol."""

    def __init__(
        self,
        environment: Environment,
        machine: Machine,
        cluster: Cluster,
        oracle: ConsumerOracle,
        catalogue: TopicCatalogue,
        *,
        rng: Rng,
        options: MemberOptions,
        transactions: TransactionCoordinator | None,
    ) -> None:
        super().__init__(machine, cluster, rng)
        self.rng = rng
        self.catalogue = catalogue
        self.client: Client
        self.subscription: Subscription
        self.led: tuple[int, Mapping[str, int]] | None = None
        self.has_left = False  # for good
        self._environment: Final = environment
        self._oracle: Final = oracle
        self._options: Final = options
        self._instance: Final = f"instance {machine.node_id}" if options.is_static else None
        self._speaker: Speaker | None = None  # None: it is away
        self._life = 0  # the number of the life
        self._positions: dict[TopicIdPartition, int] = {}  # of the partitions that it may commit
        self._sent: Final = deque[CommitOffsets](maxlen=REMEMBERED)  # in this life
        self._late: Final = deque[CommitOffsets](
            maxlen=REMEMBERED
        )  # of partitions that it does not own any more
        self._is_stopped = False
        self.has_chosen = False  # its final subscription
        self._commits: Final = Commits[MemberCommit](
            machine, oracle, rng, send=self._send, take=self._take, transactions=transactions
        )
        self.client = Client("", None, is_classic=False, session_ms=0, rebalance_ms=0)

    # --- the process and its lives ---

    def boot(self) -> None:
        """Start with nothing in memory."""
        self._forget_requests()
        self._begin()
        self._every(HEARTBEAT_US, self._act)
        self._every(self._options.commit_every_us, self._work)

    def stopped(self, *, loses_power: bool) -> None:
        """Drop all partitions. The coordinator removes the member when its session ends."""
        del loses_power
        self._oracle.loses_all(self.client)

    def run(self) -> None:
        """Do nothing: `boot` has sent the first request."""

    def stop(self) -> None:
        """Stop committing and leaving; stay a member."""
        self._is_stopped = True

    @property
    def acknowledged(self) -> int:
        """How many commits were acknowledged; leaving for good counts as one."""
        return self._commits.acknowledged + self.has_left

    def _begin(self) -> None:
        """Begin a life: choose the protocol and the subscription."""
        self._life += 1
        self._hang_up()
        self._commits.boot()
        self._positions.clear()
        self._sent.clear()
        self._late.clear()
        is_classic = self.rng.random() < self._options.classic_share
        if self._life == 1 and self._options.begins_classic:
            is_classic = True
        is_another = self._instance is None or is_classic != self.client.is_classic
        if self._life == 1 or is_another or self.rng.random() < RETURNS_ANEW:
            self._subscribe(is_classic=is_classic)
        self._new_client("" if is_classic else self.new_name(), is_classic=is_classic)
        self._speaker = Joining(self) if is_classic else Heartbeating(self)
        self._act()

    def _new_client(self, member_id: str, *, is_classic: bool) -> None:
        client = Client(
            member_id,
            self._instance,
            is_classic=is_classic,
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
        )
        self.client = self._oracle.begins(client)

    def _subscribe(self, *, is_classic: bool) -> None:
        self.subscription = self.rng.choice(CLASSIC_SUBSCRIPTIONS if is_classic else SUBSCRIPTIONS)

    def _shown(self) -> str:
        client, speaker = self.client, type(self._speaker).__name__
        has = self.catalogue.shown(client.has)
        gives_up = self.catalogue.shown(client.surplus)
        return f"{speaker} {client.member_id} {client.epoch} {has} gives up {gives_up};"

    # --- requests ---

    def _act(self) -> None:
        """Send the request that is due, unless one is under way."""
        if self._is_asking or self._speaker is None:
            return
        may_leave = self.catalogue.is_final and not self.client.surplus
        if may_leave and self._options.leaves_for_good:
            self._leave_for_good()
        elif self._speaker.is_member and self.client.kept - self._positions.keys():
            client = self.client
            member_id = None if client.is_classic else client.member_id
            fetch = Fetch(member_id, -1 if client.is_classic else client.epoch)
            self._ask(Asked(fetch, client), self._fetched, REQUEST_TIMEOUT_US)
        elif (question := self._speaker.question()) is not None:
            self._ask(Asked(question.request, self.client), question.answered, question.timeout_us)
            self._maybe_repeat()

    def _maybe_repeat(self) -> None:
        """Send copies of old requests; the member ignores their responses."""
        if isinstance(self._speaker, Heartbeating) and self.rng.random() < OLD_COMES:
            old = self._speaker.old_request()
            if old is not None:
                self._send(old, lambda: True, lambda _: None)
            if self._late:
                self._send(self._late.popleft(), lambda: True, lambda _: None)

    def _look_elsewhere(self) -> None:
        self._coordinator = None
        if self._speaker is not None:
            self._speaker.unanswered()
        self._act()

    def _serve(self, host: CoordinatorHost, request: Any, answer: Callable[[Any], None]) -> None:
        if not isinstance(request, Asked):  # a commit, a repeated request, or a farewell
            host.ask(request, answer)
            return
        moment = host.moment()
        if isinstance(request.request, Fetch):
            acknowledged = self._oracle.acknowledged()

            def shown(result: Offsets | ErrorCode) -> None:
                told = Answered((result, acknowledged), moment, self._cluster.is_replaced(host))
                answer(told)

            member_id, epoch = request.request
            host.fetch_offsets(GROUP_ID, shown, member_id=member_id, member_epoch=epoch)
            return
        self._oracle.read(request.client, moment)

        def served(result: Any) -> None:
            error_code = getattr(result, "error_code", result)
            is_replaced = self._cluster.is_replaced(host)
            if error_code is ErrorCode.NONE:
                self._oracle.served(request.client, moment, result, is_replaced=is_replaced)
            elif error_code is ErrorCode.UNRELEASED_INSTANCE_ID and not is_replaced:
                self._oracle.kept_out(request.client)
            answer(Answered(result, moment, is_replaced))

        host.ask(request.request, served)

    # --- responses: a Life ---

    def new_name(self) -> str:
        """Return a unique name."""
        return self._new_name()

    def takes(self, answered: Answered, epoch: int, assigned: Partitions | None) -> None:
        """Apply the assignment of a ConsumerGroupHeartbeat response."""
        before, is_newer = self.client.surplus, epoch > self.client.epoch
        self._oracle.told(self.client, epoch, assigned, is_replaced=answered.is_replaced)
        if is_newer:
            self._note_late_commits()
        self._give_up_later(before)

    def _note_late_commits(self) -> None:
        """Record the commits of partitions that it had revoked before this epoch began.

        They are stale from now on, even if it is assigned these partitions again. An older commit
        of a partition that it still has is valid: Kafka relies on the order of a connection there.
        """
        names = self.catalogue.names
        has = {TopicPartition(names[one.topic_id], one.partition) for one in self.client.has}
        late = [one for one in self._sent if has.isdisjoint(one.offsets)]
        for one in late:
            self._sent.remove(one)
        self._late.extend(late)

    def syncs(self, answered: Answered, generation_id: int, named: Named) -> None:
        """Apply the assignment of a SyncGroup response, with the topics of these names now."""
        known = self.catalogue.by_name
        ids = frozenset(
            TopicIdPartition(known[one.topic].topic_id, one.partition)
            for one in named
            if one.topic in known
        )
        before, replaced = self.client.surplus, answered.is_replaced
        self._oracle.synced(self.client, generation_id, named, ids, is_replaced=replaced)
        self._give_up_later(before)

    def rests(self, answered: Answered) -> None:
        """Record that the member has nothing to revoke or to report."""
        self._oracle.rests(self.client, answered.moment)

    def is_named(self, member_id: str) -> None:
        """Begin anew with this member id."""
        self._oracle.loses_all(self.client)
        self._new_client(member_id, is_classic=self.client.is_classic)

    def loses_all(self) -> None:
        """Give up all partitions, and keep the member id."""
        self._oracle.loses_all(self.client)
        self._positions.clear()

    def act_soon(self, *, after_us: int = SOON_US) -> None:
        """Send the next request after `after_us`."""
        self._machine.later(after_us, self._take, self._act)

    def look_for_coordinator(self) -> None:
        """Look for the coordinator before the next request."""
        self._coordinator = None

    def _give_up_later(self, before: Partitions) -> None:
        """Schedule the revocation of new surplus; `before`: the surplus until now."""
        for gone in self._positions.keys() - self.client.told:
            del self._positions[gone]  # it commits no partition that it revokes
        if self.client.surplus <= before:
            return
        how = self.rng.random()
        longest_us = 20_000 if how < 0.5 else 1_000_000 if how < 0.8 else 2_500_000
        if how < 0.9 or self.client.is_classic:  # else never
            after_us = self.rng.randrange(1_000, longest_us)
            self._machine.later(after_us, self._take, self._give_up, self._life)

    def _give_up(self, life: int) -> None:
        if life == self._life and self.client.surplus:
            self._oracle.gives_up(self.client, self.client.surplus)
            self._act()

    def _fetched(self, answered: Answered) -> None:
        result, acknowledged = answered.result
        if isinstance(result, ErrorCode):
            if result is ErrorCode.NOT_COORDINATOR:
                self._coordinator = None
            if self._speaker is not None and result is not ErrorCode.UNSTABLE_OFFSET_COMMIT:
                question = self._speaker.question()  # it may not be a member any more
                if question is not None:
                    asked = Asked(question.request, self.client)
                    self._ask(asked, question.answered, question.timeout_us)
            return
        shown = positions_by_name(result)
        self._oracle.fetched(shown, acknowledged, is_replaced=answered.is_replaced)
        for one in self.client.kept:
            where = TopicPartition(self.catalogue.names[one.topic_id], one.partition)
            known = self._positions.get(one, -1)
            self._positions[one] = max(known, shown[where].offset if where in shown else -1)

    # --- commits and farewells ---

    def _work(self) -> None:
        """Commit the next offsets; leave, or subscribe anew, now and then."""
        speaker = self._speaker
        if speaker is None or not speaker.is_member:
            return
        chooses = self._chooses_now()
        if self.catalogue.is_final and not self.has_chosen and chooses:
            self.has_chosen = True
            if self._options.chooses_in_the_end and self._instance is not None:
                self._leave_for_a_while()
                return
            if self._options.chooses_in_the_end:
                self._subscribe(is_classic=self.client.is_classic)
        if self._is_stopped:
            return
        chosen = 1.0 if self._environment.is_calm else self.rng.random()
        if chosen < LEAVES:
            self._leave_for_a_while()
        elif chosen < LEAVES + SUBSCRIBES_ANEW:
            self._subscribe(is_classic=self.client.is_classic)
        elif self._positions and not self._commits.is_under_way:
            self._commit()

    def _chooses_now(self) -> bool:
        """Return whether to make the final subscription; static members do so one by one."""
        if self._instance is None:
            return True
        return self.rng.random() < (CHOOSES_GIVING_UP if self.client.surplus else CHOOSES)

    def _commit(self) -> None:
        positions = {}
        for one in sorted(self._positions):
            offset = self._positions[one] + self.rng.randrange(1, 10)
            self._positions[one] = offset
            where = TopicPartition(self.catalogue.names[one.topic_id], one.partition)
            positions[where] = Position(offset, self.new_name())
        client = self.client
        commit = MemberCommit(client.member_id, client.epoch, positions)
        self._oracle.sends(commit)
        request = CommitOffsets(
            group_id=GROUP_ID,
            generation_id=client.epoch,
            member_id=client.member_id,
            group_instance_id=client.instance_id,
            offsets={
                where: CommittedOffset(offset=position.offset, metadata=position.tag)
                for where, position in positions.items()
            },
        )
        self._sent.append(request)
        self._commits.commit(commit, request)

    def _leave_for_a_while(self) -> None:
        """Give up all partitions, leave, and return later, perhaps with another protocol."""
        if self._speaker is None:
            return
        comes_back = self._instance is not None
        request = self._speaker.farewell(for_a_while=comes_back)
        self._hang_up()
        self._commits.boot()
        if not comes_back or request is not None:
            self._oracle.leaves(self.client, for_a_while=comes_back)
        self._oracle.loses_all(self.client)
        self._speaker, self._life = None, self._life + 1
        if request is not None:
            self._send(request, lambda: True, lambda _: None)
        after_us = self.rng.randrange(BACKOFF_US // 2, self.rng.choice(AWAY_US_MAX))
        self._machine.later(after_us, self._take, self._begin)

    def _leave_for_good(self) -> None:
        """Give up all partitions, and send the leave until it is acknowledged."""
        if self._speaker is None:
            return
        self._commits.boot()
        request = self._speaker.farewell(for_a_while=False)
        self._oracle.leaves(self.client, for_a_while=False)
        if request is None or not self._speaker.is_member:
            self._speaker, self.has_left = None, True  # its session ends, if it has one
            return

        def answered(answered: Answered) -> None:
            if answered.result.error_code in OUT:
                self._speaker, self.has_left = None, True
            elif answered.result.error_code is ErrorCode.NOT_COORDINATOR:
                self._coordinator = None

        self._ask(Asked(request, self.client), answered)
