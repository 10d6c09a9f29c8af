"""Brokers with two log directories, of which the second fails, is away, or is replaced.

No replica leads that lacks an acknowledged record, whatever the controller has heard by then.
"""

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from quorumlog.metadata_quorum.controller.log_loss import LogLoss, Losses
from quorumlog.metadata_quorum.controller.partition_changes import PartitionChanges
from quorumlog.metadata_quorum.image.features import LEVEL_OF_DIRECTORIES, NEWEST_LEVEL
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, TopicId
from tests.property.test_controller import World
from tests.support.metadata_quorum.controller_steps import ALL, JOIN, LET_IN, TROUBLED
from tests.support.metadata_quorum.controllers import image_of
from tests.support.metadata_quorum.indexes import check_index
from tests.support.sizes import examples

Key = tuple[TopicId, int]
FATES = ("killed", "closed", "lost_power", "wiped", "replaced", "away")
STEPS = st.one_of(
    st.tuples(st.just("died"), TROUBLED),
    st.tuples(st.just("come_back"), TROUBLED, st.sampled_from(FATES)),
    st.tuples(st.just("come_back"), TROUBLED, st.sampled_from(FATES)),
    st.tuples(st.just("fail_directory"), TROUBLED),
    st.tuples(st.just("assign"), TROUBLED, st.integers(0, 1)),
    st.tuples(st.just("assign"), TROUBLED, st.integers(0, 1)),
    st.tuples(st.just("report"), TROUBLED, st.integers(0, 1)),
    st.tuples(st.just("min_isr"), st.just("a"), st.integers(1, 3)),
    st.tuples(st.just("cluster_min_isr"), st.integers(1, 3)),
    st.tuples(st.just("reassign"), st.just("a"), st.just(0), st.permutations((1, 2, 3)).map(list)),
    LET_IN,
    LET_IN,
    JOIN,
    st.tuples(st.just("fail_over"), st.integers(0, 2)),
)
SCHEDULES = st.lists(STEPS, min_size=4, max_size=25)
LEVELS = st.sampled_from([LEVEL_OF_DIRECTORIES, NEWEST_LEVEL])
WHOLE, SHORT = 100, 50  # where a log ends: with every acknowledged record, and without


class TwoDirectories(World):
    """Partition 0 of topic a has its log in the second directory of each broker, 1 in the first.

    `seconds`: which one the second directory is, by number. `without_second`: the brokers that
    cannot use theirs. A log that was lost is made anew in the first directory (`moved`).
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seconds = dict.fromkeys(ALL, 0)
        self.without_second: set[int] = set()
        self.moved: set[int] = set()

    def acknowledge(self) -> None:
        """What an unclean election has lost is said to be lost: the partition is recovering."""
        for key, partition in self.all():
            if partition.is_recovering:
                self.holders[key] = {*partition.isr}
        super().acknowledge()

    def directory(self, broker_id: int, index: int) -> str:
        """Return where the log is."""
        if index or broker_id in self.moved:
            return self.first(broker_id)
        return f"{broker_id} second {self.seconds[broker_id]}"

    def first(self, broker_id: int) -> str:
        return f"{broker_id} first {self.disks[broker_id][0]}"

    def can_use(self, broker_id: int, index: int) -> bool:
        is_second = self.directory(broker_id, index) != self.first(broker_id)
        return not (is_second and broker_id in self.without_second)

    def do_register(self, broker_id: int, incarnation: str, address: int) -> None:
        directory, boot = self.disks[broker_id]
        process = f"{incarnation}-{directory}-{boot}-{self.closed[broker_id]}"
        is_away = broker_id in self.without_second
        second = () if is_away else (f"{broker_id} second {self.seconds[broker_id]}",)
        reply = self.register(
            broker_id,
            process,
            address * (19100 + broker_id),
            directory=self.first(broker_id),
            log_dirs=(self.first(broker_id), *second),
            has_offline_dirs=is_away,
            boot=f"{boot}",
            previous_broker_epoch=self.closed[broker_id],
            min_insync_replicas=self.least[broker_id],
        )
        was_refused = reply.error_code is not ErrorCode.NONE
        self.processes[broker_id] = "not registered yet" if was_refused else process

    def do_come_back(self, broker_id: int, fate: str) -> None:
        self.die(broker_id)
        self.without_second.discard(broker_id)
        if fate == "away":
            self.without_second.add(broker_id)
        if fate in {"replaced", "wiped"}:
            self.seconds[broker_id] += 1
            self.lose(broker_id)
            if broker_id not in self.moved:
                self.moved.add(broker_id)
        if fate in {"replaced", "away"}:
            fate = "killed"
        super().do_come_back(broker_id, fate)

    def lose(self, broker_id: int) -> None:
        """What was in the second directory is gone."""
        self.were_emptied = True
        if broker_id not in self.moved:
            for (_, index), holders in self.holders.items():
                if not index:
                    holders.discard(broker_id)

    def do_fail_directory(self, broker_id: int) -> None:
        """What was not flushed is lost; the last replica is taken as it is."""
        broker = self.controller.cluster.brokers.get(BrokerId(broker_id))
        if broker is None or not self.is_running(broker) or broker_id in self.without_second:
            return
        self.without_second.add(broker_id)
        self.lose(broker_id)
        second = f"{broker_id} second {self.seconds[broker_id]}"
        if self.heartbeat(broker_id, offline=(second,)).error_code is not ErrorCode.NONE:
            self.processes[broker_id] = "it must register again"
        for index in (0, 1):
            self.do_assign(broker_id, index)
        for key, partition in self.all():
            if {*partition.isr, *partition.elr} == {broker_id}:
                self.holders.setdefault(key, set()).add(broker_id)

    def do_assign(self, broker_id: int, index: int) -> None:
        broker = self.controller.cluster.brokers.get(BrokerId(broker_id))
        if broker is not None and self.is_running(broker):
            self.assign(broker_id, self.directory(broker_id, index), topic="a", index=index)

    def do_report(self, broker_id: int, index: int) -> None:
        """The broker reports how far its log is whole, which it has opened."""
        broker = self.controller.cluster.brokers.get(BrokerId(broker_id))
        topic_id = self.controller.cluster.topic_id("a")
        if broker is None or topic_id is None or not self.is_running(broker):
            return
        if self.can_use(broker_id, index):
            has_all = broker_id in self.holders.get((topic_id, index), ())
            self.report(broker_id, WHOLE if has_all else SHORT, topic="a", index=index)

    def do_alter(self, name: str, index: int, mask: int, drifts: bool, reboots: bool) -> None:
        """Replicas that are in sync have been reported, and can use their logs."""
        partition = self.controller.cluster.partition(name, index)
        if partition is None:
            return
        members = [b for b in partition.replicas if mask >> (b - 1) & 1]
        for broker_id in members:
            self.do_assign(broker_id, index)
        if all(self.can_use(broker_id, index) for broker_id in members):
            super().do_alter(name, index, mask, drifts, reboots)


def check(world: TwoDirectories) -> None:
    cluster = world.controller.cluster
    assert world.controller.check_invariants() == []
    check_index(cluster.by_broker, image_of(cluster), map(BrokerId, ALL))
    for (_, index), partition in world.all():
        for broker_id in partition.isr:
            broker = cluster.brokers[broker_id]
            assert world.can_use(broker_id, index) or not world.is_running(broker)


def tell(steps: list[tuple[Any, ...]], least: int, level: int) -> None:
    world = TwoDirectories()
    world.begins_at = level
    world.least = {broker_id: (broker_id + least) % 3 + 1 for broker_id in ALL}
    world.begin()
    for step in steps:
        world.do(step)
        check(world)
    world.acknowledge()
    assert image_of(world.replay()) == image_of(world.controller.cluster)


@examples(200)
@given(SCHEDULES, st.integers(1, 3), LEVELS)
def test_no_replica_leads_without_every_acknowledged_record(
    steps: list[tuple[Any, ...]], least: int, level: int
) -> None:
    tell(steps, least, level)


@pytest.mark.planted
@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        pytest.param(Losses, "of", lambda *_: LogLoss.NOTHING, id="no loss is seen"),
        pytest.param(
            PartitionChanges,
            "_with_log",
            lambda _self, _directories, active: active,
            id="a replica leads whose directory cannot be used",
        ),
    ],
)
def test_a_planted_bug_is_found(
    owner: Any, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    phases = (Phase.generate,)  # the smallest example does not matter
    find = settings(max_examples=1500, deadline=None, derandomize=True, phases=phases)(
        given(SCHEDULES, st.integers(1, 3), LEVELS)(tell)
    )
    with pytest.raises((AssertionError, ExceptionGroup)):
        find()
