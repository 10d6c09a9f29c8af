"""What changes voters: what it asks for, what it refuses, and what is put back in the end."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, Self

import pytest

from quorumlog.chaos.back_ends import voter_changer
from quorumlog.chaos.back_ends.back_end import NodeUnavailable
from quorumlog.chaos.back_ends.voter_changer import VoterChanger
from quorumlog.chaos.faults.quorum import ChangeVoters
from quorumlog.chaos.schedule import Action
from quorumlog.client import KafkaError
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.chaos.nemesis_runs import carry_out, nemesis_of
from tests.support.chaos.nodes_in_memory import NodesInMemory

pytestmark = pytest.mark.jumping_time
UNKNOWN: Final = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "it may have been made", definite=False)
REFUSED: Final = KafkaError(ErrorCode.INVALID_REQUEST, "the only voter", definite=True)


def disk(node_id: int, number: int = 1) -> bytes:
    return bytes([node_id, number]) * 8


class Quorum:
    """Answers one administrator. `errors`: what the next changes raise; None: the change is made.

    `is_made_all_the_same`: also a change whose answer is an error. `disks`: of the machines.
    """

    def __init__(self) -> None:
        self.disks: dict[int, bytes | None] = {one: disk(one) for one in (1, 2, 3)}
        self.voters = {one: disk(one) for one in (1, 2, 3)}
        self.level = 0
        self.errors: list[Exception | None] = []
        self.is_made_all_the_same = False
        self.asked: list[str] = []
        self.told: list[tuple[str, int]] = []
        self.requests = 0

    def changer(self) -> VoterChanger:
        return VoterChanger(
            "host:1",
            controllers=(1, 2, 3),
            directory_of=lambda node_id: self.disks[node_id],
            now_s=lambda: asyncio.get_running_loop().time(),
            told=lambda *told: self.told.append(told),
        )

    def __call__(self, bootstrap: str) -> Self:
        assert bootstrap == "host:1"
        return self

    async def __aenter__(self) -> Self:
        self.requests += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def _change(self, text: str, make: Callable[[], object]) -> None:
        self.asked.append(text)
        error = self.errors.pop(0) if self.errors else None
        await asyncio.sleep(0)
        if error is None or self.is_made_all_the_same:
            make()
        if error is not None:
            raise error

    async def describe_features(self) -> Mapping[str, Any]:
        return {"kraft.version": SimpleNamespace(level=self.level)}

    async def update_features(self, levels: Mapping[str, int]) -> None:
        def make() -> None:
            self.level = levels["kraft.version"]

        await self._change("upgrade", make)

    async def describe_quorum(self) -> Any:
        def replica(node_id: int, directory_id: bytes | None) -> Any:
            return SimpleNamespace(replica_id=node_id, directory_id=directory_id)

        voters = [
            replica(one, its if self.level else bytes(16)) for one, its in self.voters.items()
        ]
        observers = [
            replica(one, its)
            for one, its in self.disks.items()
            if its is not None and self.voters.get(one) != its
        ]
        addresses = {one: f"host{one}:9" for one in self.disks}
        return SimpleNamespace(voters=voters, observers=observers, addresses=addresses)

    async def remove_raft_voter(self, voter_id: int, directory_id: bytes) -> None:
        assert self.voters[voter_id] == directory_id
        await self._change(f"remove {voter_id}", lambda: self.voters.pop(voter_id))

    async def add_raft_voter(self, voter_id: int, directory_id: bytes, address: str) -> None:
        assert address == f"host{voter_id}:9"
        assert voter_id not in self.voters
        await self._change(
            f"add {voter_id}", lambda: self.voters.__setitem__(voter_id, directory_id)
        )


@pytest.fixture
def quorum(monkeypatch: pytest.MonkeyPatch) -> Quorum:
    quorum = Quorum()
    monkeypatch.setattr(voter_changer, "Admin", quorum)
    return quorum


async def failure(work: Awaitable[None]) -> str:
    with pytest.raises(NodeUnavailable) as raised:
        await work
    return str(raised.value)


async def test_a_voter_is_removed_and_added_and_the_version_is_raised_once(quorum: Quorum) -> None:
    changer = quorum.changer()
    await changer.perform("remove_voter", (2,))
    assert [*quorum.voters] == [1, 3]
    await changer.perform("add_voter", (1, 2, 3))
    await changer.perform("remove_voter", (3,))
    assert quorum.asked == ["upgrade", "remove 2", "add 2", "remove 3"]
    assert quorum.told == [("remove_voter", 2), ("add_voter", 2), ("remove_voter", 3)]
    assert changer.changes == 4
    assert not changer.is_changing


async def test_a_run_that_has_changed_no_voter_asks_for_nothing_at_its_end(quorum: Quorum) -> None:
    await quorum.changer().perform("add_voter", (1, 2, 3))
    assert quorum.requests == 0


async def test_a_refused_change_has_failed(quorum: Quorum) -> None:
    changer = quorum.changer()
    quorum.errors = [None, REFUSED]
    told = await failure(changer.perform("remove_voter", (2,)))
    assert told == "failed: INVALID_REQUEST: the only voter"
    assert not changer.is_changing
    assert quorum.told == []


async def test_what_is_not_known_to_be_made_stays_in_doubt_for_a_while(quorum: Quorum) -> None:
    changer = quorum.changer()
    quorum.errors = [None, *[UNKNOWN] * 100]
    told = await failure(changer.perform("remove_voter", (2,)))
    assert told.startswith("unknown: REQUEST_TIMED_OUT")
    assert changer.is_changing
    assert await changer.why_not_wipe(1) == "the voters are changing"
    await asyncio.sleep(31)
    assert await changer.why_not_wipe(1) == ""


async def test_a_removal_that_is_found_made_is_not_asked_for_again(quorum: Quorum) -> None:
    changer = quorum.changer()
    quorum.errors, quorum.is_made_all_the_same = [None, UNKNOWN], True
    await changer.perform("remove_voter", (2,))
    assert quorum.asked == ["upgrade", "remove 2"]
    assert quorum.told == []  # no answer has said that it is committed


async def test_a_node_that_is_no_voter_or_no_controller_is_not_removed(quorum: Quorum) -> None:
    changer = quorum.changer()
    assert "no controller" in await failure(changer.perform("remove_voter", (4,)))
    del quorum.voters[2]
    assert "no voter" in await failure(changer.perform("remove_voter", (2,)))


async def test_a_voter_stays_if_too_few_of_the_others_have_their_disks(quorum: Quorum) -> None:
    changer = quorum.changer()
    await changer.perform("raise_kraft_version", (1,))
    changer.note_wipe(3)  # it is about to be gone
    told = await failure(changer.perform("remove_voter", (2,)))
    assert told == "failed: of the voters 1, 3, no majority would have its disks"
    assert await changer.why_not_wipe(2) != ""
    assert await changer.why_not_wipe(3) == ""


async def test_a_voter_that_has_lost_its_disk_is_replaced(quorum: Quorum) -> None:
    changer = quorum.changer()
    await changer.perform("raise_kraft_version", (1,))
    changer.note_wipe(3)
    quorum.disks[3] = disk(3, 2)
    await changer.perform("add_voter", (1, 2, 3))
    assert quorum.voters == {1: disk(1), 2: disk(2), 3: disk(3, 2)}
    assert quorum.asked == ["upgrade", "remove 3", "add 3"]
    assert await changer.why_not_wipe(1) == ""


async def test_a_node_without_a_directory_is_waited_for(quorum: Quorum) -> None:
    changer = quorum.changer()
    await changer.perform("remove_voter", (3,))
    quorum.disks[3] = None
    assert "its directory is unknown" in await failure(changer.perform("add_voter", (3,)))
    adding = asyncio.create_task(changer.perform("add_voter", (3,)))
    await asyncio.sleep(1)
    quorum.disks[3] = disk(3)
    await adding
    assert quorum.voters == {one: disk(one) for one in (1, 2, 3)}


async def test_a_disk_that_is_emptied_while_the_quorum_is_asked_is_not_added(
    quorum: Quorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a voter it would be lost at once: with one other, no majority would have its disks."""
    changer = quorum.changer()
    await changer.perform("remove_voter", (3,))
    described = quorum.describe_quorum

    async def describe_late() -> Any:
        answer = await described()
        changer.note_wipe(3)
        return answer

    monkeypatch.setattr(quorum, "describe_quorum", describe_late)
    assert "emptied meanwhile" in await failure(changer.perform("add_voter", (3,)))
    assert quorum.asked == ["upgrade", "remove 3"]


async def test_all_nodes_are_tried_and_those_that_failed_are_named(quorum: Quorum) -> None:
    changer = quorum.changer()
    quorum.errors = [None, REFUSED]
    with pytest.raises(NodeUnavailable) as raised:
        await changer.perform("remove_voter", (2, 3))
    assert raised.value.node_ids == (2,)
    assert [*quorum.voters] == [1, 2]


class Unanswered(NodesInMemory):
    """Nobody knows of a removal whether it was made."""

    async def perform(self, operation: str, node_ids: Sequence[int], amount: int = 0) -> None:
        await super().perform(operation, node_ids, amount)
        if operation == "remove_voter":
            raise NodeUnavailable("unknown: no answer")


REMOVAL = Action(t_us=0, fault=ChangeVoters(), target="metadata-leader", duration_us=1_000_000)


async def test_a_removal_is_taken_back_although_it_may_not_have_been_made() -> None:
    nodes = Unanswered()
    rows = [f for f, _, _ in await carry_out(nodes, REMOVAL)]
    assert nodes.performed == [("remove_voter", (2,)), ("add_voter", (2,))]
    assert rows == ["remove_voter", "skipped", "add_voter"]


async def test_the_voters_are_healed_last_of_all() -> None:
    nodes = NodesInMemory()
    assert await nemesis_of(nodes, REMOVAL).heal()
    operations = [operation for operation, _ in nodes.performed]
    assert operations[-2:] == ["start", "add_voter"]
    assert operations.count("add_voter") == 1
