"""Controllers join and leave a running quorum, die and lose their disks (KIP-853): real processes.

Nothing that was acknowledged is lost meanwhile.
"""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from quorumlog import Admin, LocalCluster
from quorumlog.cli.quorum_commands import _uuid
from quorumlog.client import KafkaError
from quorumlog.client.descriptions import QuorumDescription
from quorumlog.client.sync import SyncProducer
from quorumlog.cluster import layout
from quorumlog.cluster.layout import NodeSpec
from quorumlog.cluster.ports import free_ports
from quorumlog.storage.io.checkpoints import read_meta_properties
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.support.cli.processes import Commands
from tests.support.cluster import kept_topic
from tests.support.cluster.kept_topic import TOPIC, create, wait_for

pytestmark = pytest.mark.integration
VOTERS, BOOTSTRAP = "controller.quorum.voters", "controller.quorum.bootstrap.servers"
PASSING_S = 30


class Voters:
    """A cluster of nodes 1 to 3, which vote, and node 4, which is to join them."""

    def __init__(self, directory: Path, **config: str) -> None:
        config = {name.replace("_", "."): value for name, value in config.items()}
        self.cluster = LocalCluster(
            directory, nodes=3, config={"min.insync.replicas": "2", **config}
        )
        self.configured = ",".join(f"{node.id}@{node.control}" for node in self.cluster.nodes)

    def plan_node_4(self) -> None:
        """It knows addresses to ask; the others are not told of it."""
        spec = self.cluster.spec
        kafka, control = free_ports("127.0.0.1", 2)
        four = NodeSpec(
            id=4,
            roles=("broker", "controller"),
            kafka=f"127.0.0.1:{kafka}",
            control=f"127.0.0.1:{control}",
        )
        asked = ",".join(node.control for node in spec.nodes)
        detours = {node.id: {VOTERS: self.configured} for node in spec.nodes}
        detours[4] = {VOTERS: "", BOOTSTRAP: asked}
        self.cluster.spec = replace(spec, nodes=(*spec.nodes, four), detours=detours)
        self.cluster._processes[4] = self.cluster._process_of(self.cluster.spec, four)

    def directory_of(self, node_id: int) -> str:
        data = layout.data_directory(self.cluster.directory, node_id)
        meta = read_meta_properties(RealDisk(), str(data))
        assert meta is not None
        return meta.directory_id

    def status(self, node_id: int) -> dict[str, Any]:
        view = self.cluster.node_status(node_id)
        return {} if view is None else view["quorum"]

    def voters_seen_by(self, node_id: int) -> list[int]:
        return [voter["id"] for voter in self.status(node_id).get("voters", [])]

    def describe(self) -> QuorumDescription:
        described: QuorumDescription = asyncio.run(self._with_admin(Admin.describe_quorum))
        return described

    def upgrade(self) -> None:
        async def work(admin: Admin) -> None:
            update = FeatureUpdateKey(feature="kraft.version", max_version_level=1, upgrade_type=1)
            answer = await admin.request(UpdateFeaturesRequest(feature_updates=[update]))
            assert answer.error_code == ErrorCode.NONE, answer.error_message

        asyncio.run(self._with_admin(work))

    def add(self, node_id: int) -> None:
        """Add a node once it has caught up."""
        address = self.cluster.spec.node(node_id).control
        uuid = _uuid(self.directory_of(node_id))
        self._until_done(lambda admin: admin.add_raft_voter(node_id, uuid, address))

    def remove(self, node_id: int, directory_id: str) -> None:
        self._until_done(lambda admin: admin.remove_raft_voter(node_id, _uuid(directory_id)))

    def _until_done(self, work: Callable[[Admin], Any]) -> None:
        """Repeat a change whose outcome is unknown: then it may be found made."""
        deadline_s, unknown = time.monotonic() + PASSING_S, False
        made = {ErrorCode.DUPLICATE_VOTER, ErrorCode.VOTER_NOT_FOUND}
        while True:
            try:
                asyncio.run(self._with_admin(work))
            except KafkaError as error:
                if unknown and error.code in made:
                    return
                if error.definite or time.monotonic() > deadline_s:
                    raise
                unknown = True
                time.sleep(0.1)
            else:
                return

    async def _with_admin(self, work: Callable[[Admin], Any]) -> Any:
        async with Admin(self.cluster.bootstrap) as admin:
            return await work(admin)

    def leader(self) -> int:
        return self.describe().leader_id


@contextmanager
def producing(bootstrap: str) -> Iterator[list[int]]:
    """Produce until the end of the block; what is acknowledged is in the list."""
    acknowledged: list[int] = []
    stop = Event()

    def run() -> None:
        with SyncProducer(bootstrap) as producer:
            for number in range(1_000_000):
                if stop.is_set():
                    return
                producer.send(TOPIC, b"%d" % number).result()
                acknowledged.append(number)

    thread = Thread(target=run)
    thread.start()
    try:
        wait_for(lambda: acknowledged)
        yield acknowledged
        so_far = len(acknowledged)
        wait_for(lambda: len(acknowledged) > so_far)
    finally:
        stop.set()
        thread.join()


async def read_all(bootstrap: str) -> set[int]:
    values = await kept_topic.read_all(bootstrap)
    assert len({*values}) == len(values)
    return {*values}


@pytest.fixture
def voters(tmp_path: Path) -> Iterator[Voters]:
    voters = Voters(tmp_path, controller_quorum_auto_join_enable="false")
    with voters.cluster:
        asyncio.run(create(voters.cluster.bootstrap, num_partitions=1))
        yield voters


def test_a_node_joins_and_the_leader_leaves_while_clients_go_on(voters: Voters) -> None:
    bootstrap = voters.cluster.bootstrap
    with producing(bootstrap) as acknowledged:
        voters.upgrade()
        wait_for(lambda: voters.status(2).get("kraft_version") == 1)
        voters.plan_node_4()
        voters.cluster.start_node(4)
        wait_for(lambda: 4 in {one.replica_id for one in voters.describe().observers})
        added = Commands().json("quorum", "add-voter", "--node", "4", "--bootstrap", bootstrap)
        assert added == {
            "node": 4,
            "directory_id": voters.directory_of(4),
            "address": voters.cluster.spec.node(4).control,  # the leader has heard it
            "voter": True,
        }
        for node_id in range(1, 5):
            wait_for(lambda n=node_id: voters.voters_seen_by(n) == [1, 2, 3, 4])  # type: ignore[misc]
        leader = voters.leader()
        voters.remove(leader, voters.directory_of(leader))
        left = [node_id for node_id in range(1, 5) if node_id != leader]
        wait_for(lambda: voters.leader() in left)
        assert [one.replica_id for one in voters.describe().voters] == left
        wait_for(lambda: voters.status(leader)["role"] == "follower")
        for victim in left:  # a majority is left each time
            voters.cluster.kill(victim)
            wait_for(lambda v=victim: voters.leader() not in {v, leader})  # type: ignore[misc]
            voters.cluster.start_node(victim)
        voters.cluster.kill(1, 2, 3, 4)
        for node_id in range(1, 5):
            voters.cluster.start_node(node_id, wait=False)
        wait_for(lambda: all(voters.voters_seen_by(n) == left for n in range(1, 5)))
        wait_for(lambda: voters.leader() in left)
    assert {*acknowledged} <= asyncio.run(read_all(voters.cluster.bootstrap))


def test_a_voter_that_lost_its_disk_is_replaced_and_does_not_vote_its_way_back(
    voters: Voters,
) -> None:
    voters.upgrade()
    leader = voters.leader()
    wiped, other = (node_id for node_id in (1, 2, 3) if node_id != leader)
    before = voters.directory_of(wiped)
    with producing(voters.cluster.bootstrap) as acknowledged:
        voters.cluster.kill(wiped)
        shutil.rmtree(layout.data_directory(voters.cluster.directory, wiped))
        voters.cluster.start_node(wiped)
        after = voters.directory_of(wiped)
        assert after != before
        wait_for(lambda: wiped in {one.replica_id for one in voters.describe().observers})
        described = voters.describe()
        assert {one.replica_id for one in described.voters} == {1, 2, 3}
        voters.remove(wiped, before)
        voters.add(wiped)
        [voter] = [one for one in voters.describe().voters if one.replica_id == wiped]
        assert voter.directory_id == _uuid(after)
    assert {*acknowledged} <= asyncio.run(read_all(voters.cluster.bootstrap))
    voters.cluster.kill(other)  # the one that was replaced makes a majority with the leader
    wait_for(lambda: voters.leader() in {leader, wiped})


def test_controllers_that_are_to_join_by_themselves_take_their_places(tmp_path: Path) -> None:
    voters = Voters(tmp_path)
    with voters.cluster:
        wait_for(lambda: voters.status(1).get("kraft_version") == 1)
        voters.plan_node_4()
        voters.cluster.start_node(4)
        for node_id in range(1, 5):
            wait_for(lambda n=node_id: voters.voters_seen_by(n) == [1, 2, 3, 4])  # type: ignore[misc]
        wiped = next(node_id for node_id in (1, 2, 3) if node_id != voters.leader())
        voters.cluster.kill(wiped)
        shutil.rmtree(layout.data_directory(tmp_path, wiped))
        voters.cluster.start_node(wiped)
        key = wiped, _uuid(voters.directory_of(wiped))
        wait_for(
            lambda: key in {(one.replica_id, one.directory_id) for one in voters.describe().voters}
        )
        assert [one.replica_id for one in voters.describe().voters] == [1, 2, 3, 4]


def test_disks_that_are_lost_one_after_the_other_are_replaced_as_the_status_says(
    tmp_path: Path,
) -> None:
    voters = Voters(tmp_path)

    def is_whole() -> bool:
        status = voters.cluster.status()
        return (
            status["quorum"]["answering"] == [1, 2, 3]
            and status["controller_id"] is not None
            and status["partitions"]["fewer_in_sync"] == 0
        )

    with voters.cluster:
        asyncio.run(create(voters.cluster.bootstrap, num_partitions=1))
        wait_for(is_whole)
        with producing(voters.cluster.bootstrap) as acknowledged:
            for wiped in (3, 2, 1):
                voters.cluster.kill(wiped)
                shutil.rmtree(layout.data_directory(tmp_path, wiped))
                voters.cluster.start_node(wiped)
                wait_for(is_whole)
        assert {*acknowledged} <= asyncio.run(read_all(voters.cluster.bootstrap))


def test_a_change_whose_leader_is_killed_is_made_or_not_and_another_goes_on(voters: Voters) -> None:
    voters.upgrade()
    with producing(voters.cluster.bootstrap) as acknowledged:
        for attempt in range(3):
            leader = voters.leader()
            changed = next(n for n in (1, 2, 3) if n != leader)
            directory_id = voters.directory_of(changed)
            removal = Thread(target=lambda n=changed, d=directory_id: voters.remove(n, d))
            removal.start()
            time.sleep(0.02 * attempt)  # it may meet the kill at any moment
            voters.cluster.kill(leader)
            voters.cluster.start_node(leader)
            removal.join()
            left = [n for n in (1, 2, 3) if n != changed]
            for node_id in (1, 2, 3):
                wait_for(lambda n=node_id, v=left: voters.voters_seen_by(n) == v)  # type: ignore[misc]
            voters.add(changed)
            for node_id in (1, 2, 3):
                wait_for(lambda n=node_id: voters.voters_seen_by(n) == [1, 2, 3])  # type: ignore[misc]
    assert {*acknowledged} <= asyncio.run(read_all(voters.cluster.bootstrap))


def test_two_voters_of_which_one_lost_its_disk_elect_no_leader(voters: Voters) -> None:
    voters.upgrade()
    leader = voters.leader()
    wiped, other = (node_id for node_id in (1, 2, 3) if node_id != leader)
    wait_for(lambda: voters.status(other).get("kraft_version") == 1)
    voters.cluster.kill(wiped)
    shutil.rmtree(layout.data_directory(voters.cluster.directory, wiped))
    voters.cluster.start_node(wiped)
    wait_for(lambda: voters.status(wiped).get("kraft_version") == 1)
    voters.cluster.kill(leader)
    epoch = voters.status(other)["leader_epoch"]
    wait_for(lambda: voters.status(other)["role"] == "prospective")
    assert voters.status(wiped)["role"] in {"unattached", "follower"}
    assert voters.status(other)["leader_epoch"] == epoch  # it got no pre-vote of a majority
    voters.cluster.start_node(leader)
    wait_for(lambda: voters.leader() in {leader, other})
