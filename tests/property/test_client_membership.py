"""Members of one classic group and a dumb coordinator, under any schedule of loss and delay.

No partition belongs to two members that the coordinator counts in; on a healthy network everything
is assigned to somebody.
"""

from collections import deque
from itertools import product
from random import Random
from typing import ClassVar

import pytest

from quorumlog.client.core import membership_events as facts
from quorumlog.client.core.membership import TRANSITIONS, Membership, State
from quorumlog.client.core.membership_events import Effect, Event
from quorumlog.client.errors import AssignorError
from quorumlog.client.settings import AssignorName, ConsumerSettings
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.client.assigning import computed
from tests.support.sizes import tries

COUNTS = {"t": 4, "u": 1}
STRATEGIES: tuple[tuple[AssignorName, ...], ...] = (
    ("range",),
    ("roundrobin", "range"),
    ("cooperative-sticky",),
    ("sticky",),
)
NAMES = (0, 1, 2)
ASSIGNOR_FAILS = 0.1


class Coordinator:
    """KIP-54's coordinator without time: the machine says who is late."""

    def __init__(self) -> None:
        self.generation = 0
        self.members: dict[str, int] = {}  # member id -> whose it is
        self.ids = 0
        self.phase = "stable"
        self.joined: dict[str, tuple[tuple[str, bytes], ...]] = {}
        self.synced: set[str] = set()
        self.shares: dict[str, bytes] | None = None
        self.leader = ""
        self.refused: list[tuple[int, Event]] = []  # whose requests wait in vain, and the answer

    def expel(self, member_id: str) -> None:
        who = self.members.pop(member_id, None)
        if who is not None and self.joined.pop(member_id, None) is not None:
            unknown = facts.JoinAnswered(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
            self.refused.append((who, unknown))
        self.rebalance()

    def rebalance(self) -> None:
        """Let all join anew: those that wait for their share will not get it."""
        self.phase = "joining"
        in_progress = facts.SyncAnswered(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        waiting = [self.members[name] for name in sorted(self.synced) if name in self.members]
        self.refused += [(who, in_progress) for who in waiting]
        self.synced = set()

    def join(self, who: int, effect: facts.SendJoin) -> Event | None:
        if not effect.member_id:
            self.ids += 1
            member_id = f"m{self.ids}"
            self.members[member_id] = who
            required = ErrorCode.MEMBER_ID_REQUIRED
            return facts.JoinAnswered(error_code=required, member_id=member_id)
        if effect.member_id not in self.members:
            return facts.JoinAnswered(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        self.rebalance()
        self.joined[effect.member_id] = effect.protocols
        return None

    def complete_join(self) -> dict[str, Event]:
        """Everybody joined, or is late and thrown out."""
        for member_id in [one for one in self.members if one not in self.joined]:
            del self.members[member_id]
        self.generation += 1
        self.phase, self.shares, self.synced = "syncing", None, set()
        self.leader = min(self.joined, default="")
        listed = tuple(
            facts.JoinedMember(member_id=name, instance_id=None, metadata=protocols[0][1])
            for name, protocols in sorted(self.joined.items())
        )
        answers: dict[str, Event] = {}
        for member_id, protocols in self.joined.items():
            answers[member_id] = facts.JoinAnswered(
                error_code=0,
                generation_id=self.generation,
                member_id=member_id,
                leader_id=self.leader,
                protocol=protocols[0][0],
                members=listed if member_id == self.leader else (),
            )
        self.joined = {}
        return answers

    def check(self, member_id: str, generation: int) -> ErrorCode:
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        is_joining = self.phase == "joining"
        return ErrorCode.REBALANCE_IN_PROGRESS if is_joining else ErrorCode.NONE

    def sync(self, effect: facts.SendSync) -> dict[str, Event]:
        code = self.check(effect.member_id, effect.generation_id)
        if code != ErrorCode.NONE:
            return {effect.member_id: facts.SyncAnswered(error_code=code)}
        self.synced.add(effect.member_id)
        if effect.member_id == self.leader:
            self.shares, self.phase = dict(effect.assignments), "stable"
        if self.shares is None:
            return {}
        ready, self.synced = self.synced, set()
        shares = self.shares
        return {
            name: facts.SyncAnswered(error_code=0, assignment=shares.get(name, b""))
            for name in sorted(ready)
        }


class AnySchedule:
    membership_class: ClassVar[type[Membership]] = Membership

    def __init__(self, strategy: int, rng: Random) -> None:
        names = STRATEGIES[strategy]
        self.rng, self.is_ending = rng, False
        options = ConsumerSettings(
            bootstrap_servers="x:1", group_id="g", partition_assignment_strategy=names
        )
        self.now_ms = 0.0
        self.coordinator = Coordinator()
        self.members = [self.membership_class(options) for _ in NAMES]
        self.requests: list[deque[Effect]] = [deque() for _ in NAMES]
        self.answers: list[deque[Event]] = [deque() for _ in NAMES]
        self.finding = dict.fromkeys(NAMES, False)
        for who in NAMES:
            self.step(who, facts.Subscribed(topics=("t", "u")))

    def step(self, who: int, event: Event) -> None:
        for effect in self.members[who].step(self.now_ms, event):
            match effect:
                case facts.FindCoordinator():
                    self.finding[who] = True
                case facts.LookUpTopics(topics=topics):
                    counts = {topic: COUNTS[topic] for topic in topics}
                    self.answers[who].append(facts.TopicsLookedUp(counts=counts))
                case facts.ComputeAssignment(generation_id=generation):
                    end: Event = computed(effect)
                    if self.rng.random() < ASSIGNOR_FAILS and not self.is_ending:
                        failed = AssignorError("any", "raised ValueError()")
                        end = facts.AssignmentFailed(generation_id=generation, error=failed)
                    self.answers[who].append(end)
                case facts.Revoke():
                    self.answers[who].append(facts.RevocationDone())
                case facts.Fail() | facts.Assign():
                    pass
                case _:
                    self.requests[who].append(effect)

    def poll(self, who: int) -> None:
        self.step(who, facts.PollBegan())

    def leave_poll(self, who: int) -> None:
        self.step(who, facts.PollEnded())

    def find(self, who: int) -> None:
        if self.finding[who]:
            self.finding[who] = False
            self.step(who, facts.CoordinatorFound())

    def request(self, who: int) -> None:
        """The coordinator takes in a member's oldest request."""
        if not self.requests[who]:
            return
        match self.requests[who].popleft():
            case facts.SendJoin() as join:
                answer = self.coordinator.join(who, join)
                if answer is not None:
                    self.answers[who].append(answer)
            case facts.SendSync() as sync:
                for member_id, reply in self.coordinator.sync(sync).items():
                    owner = self.coordinator.members.get(member_id, who)
                    self.answers[owner].append(reply)
            case facts.SendHeartbeat(member_id=member_id, generation_id=generation):
                code = self.coordinator.check(member_id, generation)
                beat = facts.HeartbeatAnswered(generation_id=generation, error_code=code)
                self.answers[who].append(beat)
            case facts.SendLeave(member_id=member_id):
                self.coordinator.expel(member_id)
            case other:
                raise AssertionError(other)
        self.refuse()

    def refuse(self) -> None:
        for who, answer in self.coordinator.refused:
            self.answers[who].append(answer)
        self.coordinator.refused.clear()

    def complete_join(self) -> None:
        coordinator = self.coordinator
        if coordinator.phase == "joining" and coordinator.joined:
            for member_id, answer in coordinator.complete_join().items():
                self.answers[coordinator.members[member_id]].append(answer)

    def answer(self, who: int) -> None:
        if self.answers[who]:
            self.step(who, self.answers[who].popleft())

    def disconnect(self, who: int) -> None:
        """What was sent and not answered is lost; listeners are ours, and end all the same."""
        own = (
            facts.RevocationDone,
            facts.TopicsLookedUp,
            facts.AssignmentComputed,
            facts.AssignmentFailed,
        )
        kept = [answer for answer in self.answers[who] if isinstance(answer, own)]
        self.answers[who] = deque(kept)
        self.requests[who].clear()
        self.step(who, facts.CoordinatorLost())
        lost = ErrorCode.NETWORK_EXCEPTION
        if self.members[who].state is State.JOINING:
            self.step(who, facts.JoinAnswered(error_code=lost))
        elif self.members[who].state is State.SYNCING:
            self.step(who, facts.SyncAnswered(error_code=lost))

    def expel(self, who: int) -> None:
        """The member's session ended."""
        for member_id in [one for one, owner in self.coordinator.members.items() if owner == who]:
            self.coordinator.expel(member_id)
        self.refuse()

    def wait(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        for who in NAMES:
            self.step(who, facts.Ticked())

    def no_partition_has_two_owners(self) -> None:
        owners = [
            (partition, who)
            for who, member in enumerate(self.members)
            if self.coordinator.members.get(member.member_id) == who
            and member.generation_id == self.coordinator.generation
            for partition in member.owned
        ]
        partitions = [partition for partition, _ in owners]
        assert len(partitions) == len(set(partitions)), owners

    def teardown(self) -> None:
        self.is_ending = True
        for _ in range(60):
            self.now_ms += 1_500
            for who in NAMES:
                self.find(who)
                self.poll(who)
                for _ in range(4):
                    self.request(who)
                    self.answer(who)
            known = {member.member_id for member in self.members}
            if {*self.coordinator.joined} >= {*self.coordinator.members} & known:
                self.complete_join()
        owned = sorted(partition for member in self.members for partition in member.owned)
        assert [str(one) for one in owned] == ["t-0", "t-1", "t-2", "t-3", "u-0"]
        assert {member.state for member in self.members} == {State.STABLE}
        self.no_partition_has_two_owners()


class KeepsWhatItShouldYield(Membership):
    def _accept_assignment(self) -> list[Effect]:
        kept = self.owned
        effects = super()._accept_assignment()
        self.owned = tuple(sorted({*kept, *self.owned}))
        return effects


class IgnoresItsExpulsion(Membership):
    def _forget_generation(self) -> list[Effect]:
        self._become(State.UNJOINED)
        return []


MOVES = ("poll", "leave_poll", "find", "request", "answer", "disconnect", "expel")


def walk(kind: type[AnySchedule], seed: int, steps: int = 200) -> None:
    """Make random moves, of which what is likely in a real group is likelier; then converge."""
    rng = Random(seed)
    machine = kind(rng.randrange(len(STRATEGIES)), rng)
    for _ in range(steps):
        move = rng.choice((*MOVES, "request", "answer", "complete_join", "wait"))
        if move == "complete_join":
            machine.complete_join()
        elif move == "wait":
            machine.wait(elapsed_ms=rng.choice((20, 1_000, 3_000, 301_000)))
        else:
            getattr(machine, move)(who=rng.choice(NAMES))
        machine.no_partition_has_two_owners()
    machine.teardown()


def walk_often(machine: type[AnySchedule], seeds: int = 200) -> None:
    for seed in range(seeds):
        walk(machine, seed)


def test_random_walks_end_with_each_partition_owned_once_and_never_twice() -> None:
    walk_often(AnySchedule, tries(250))


@pytest.mark.planted
@pytest.mark.parametrize("mutant", [KeepsWhatItShouldYield, IgnoresItsExpulsion])
def test_a_mutant_is_found(mutant: type[Membership]) -> None:
    machine = type("Mutated", (AnySchedule,), {"membership_class": mutant})
    with pytest.raises((AssertionError, InvariantViolation)):
        walk_often(machine)


S = State
LEGAL = {  # written a second time here, on purpose
    *product([S.REVOKING, S.JOINING, S.LEADING, S.SYNCING, S.YIELDING, S.STABLE], [S.UNJOINED]),
    (S.UNJOINED, S.UNJOINED),
    (S.UNJOINED, S.REVOKING),
    (S.UNJOINED, S.JOINING),
    (S.REVOKING, S.JOINING),
    (S.JOINING, S.LEADING),
    (S.JOINING, S.SYNCING),
    (S.LEADING, S.SYNCING),
    (S.SYNCING, S.YIELDING),
    (S.SYNCING, S.STABLE),
    (S.YIELDING, S.STABLE),
    (S.STABLE, S.REVOKING),
    (S.STABLE, S.JOINING),
}


@pytest.mark.parametrize(("source", "target"), list(product(State, repeat=2)))
def test_every_pair_of_states(source: State, target: State) -> None:
    member = Membership(ConsumerSettings(bootstrap_servers="x:1", group_id="g"))
    member.state = source
    if (source, target) in LEGAL:
        member._become(target)
        assert member.state is target
    else:
        with pytest.raises(InvariantViolation, match="a member may go"):
            member._become(target)
        assert member.state is source
    assert (target in TRANSITIONS[source]) == ((source, target) in LEGAL)
