"""An administrator that changes the voters at random, and machines that lose their disks.

It requests only changes that a quorum survives: of each voter set that may be in force, a majority
keeps its disk. A pending request counts as made: a leader with a slow disk may append it later.
Sources: KIP-853; the rules that it tests are in `oracle`.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.kernel.run import Environment
from quorumlog.chaos.simulation.worlds.quorum.messenger import Reply
from quorumlog.chaos.simulation.worlds.quorum.node import QuorumNode
from quorumlog.chaos.simulation.worlds.quorum.observed import ObservedDriver
from quorumlog.chaos.simulation.worlds.quorum.oracle import Oracle
from quorumlog.chaos.simulation.worlds.quorum.voter_model import (
    Key,
    is_voters,
    keys_in,
    majority_of,
    voter_of,
)
from quorumlog.invariants import some
from quorumlog.metadata_quorum.core.messages import (
    AddVoterRequest,
    PlainResponse,
    RemoveVoterRequest,
    UpgradeKRaftVersionRequest,
    VoterChangeRequest,
    VoterChangeResponse,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId

DOWN_US: Final = 500_000  # of a machine that gets a new disk
SHARE_OF_SECOND_ATTEMPTS: Final = 0.3


class Administrator:
    """Requests voter changes of nodes in the role of a leader. `made`: the number of changes."""

    def __init__(
        self,
        nodes: Mapping[int, QuorumNode],
        *,
        environment: Environment,
        oracle: Oracle,
        rng: Rng,
        every_us: int,
    ) -> None:
        self.made = 0
        self._nodes: Final = nodes
        self._environment: Final = environment
        self._oracle: Final = oracle
        self._rng: Final = rng
        self._every_us: Final = every_us
        self._under_way: list[_UnderWay] = []

    def begin(self) -> None:
        """Begin to change the voters, until the calm."""
        self._environment.timeline.push(self._every_us, self._act)

    def _act(self) -> None:
        if self._environment.is_calm:
            return
        self.begin()
        for node in list(self._nodes.values()):
            if node.accepts_records:
                self._ask(node)
                if self._rng.random() < SHARE_OF_SECOND_ATTEMPTS and node.accepts_records:
                    self._ask(node)
        if self._rng.random() < 0.2:
            self._maybe_lose_a_disk()

    def _ask(self, node: QuorumNode) -> None:
        request = self._drawn_request(node)
        if request is not None:
            under_way = node, node.driver, request
            self._under_way.append(under_way)
            node.driver.request(request, Reply(partial(self._answered, under_way)))

    def _answered(self, under_way: "_UnderWay", answer: tuple[PlainResponse, None]) -> None:
        self._under_way.remove(under_way)
        response, _ = answer
        if isinstance(response, VoterChangeResponse):
            self.made += response.error_code is ErrorCode.NONE

    def _drawn_request(self, node: QuorumNode) -> VoterChangeRequest | None:
        """Return a change that the quorum can survive; None: this time there is none."""
        if node.quorum.state.kraft_version == 0:
            return UpgradeKRaftVersionRequest(kraft_version=1)
        voters = self._oracle.voters.in_force(self._oracle.logs[node.node_id])
        if self._rng.random() < 0.5:
            others = [
                one for one in sorted(self._nodes) if one not in {key.node_id for key in voters}
            ]
            return self._added(self._rng.choice(others)) if others else None
        lost = sorted(voters - self._oracle.voters.intact(voters))
        leaving = self._rng.choice(lost or sorted(voters))
        rest = voters - {leaving}
        if not rest or len(self._oracle.voters.intact(rest)) < majority_of(rest):
            return None
        return RemoveVoterRequest(
            voter_id=BrokerId(leaving.node_id), directory_id=leaving.directory_id
        )

    def _added(self, node_id: int) -> AddVoterRequest:
        directory_id = some(self._nodes[node_id].directory_id, "the voters change")
        voter = voter_of(node_id, directory_id)
        return AddVoterRequest(voter=voter, ack_when_committed=self._rng.random() < 0.8)

    # --- lost disks ---

    def _maybe_lose_a_disk(self) -> None:
        """Let a machine lose its disk, if a majority of each possible set keeps its own.

        Not before each log has a record of voters: at kraft.version 0 a directory does not count.
        """
        node_id = self._rng.choice(sorted(self._nodes))
        logs = self._oracle.logs.values()
        if not all(any(is_voters(one) for one in log) for log in logs):
            return
        for voters in self._possible_sets():
            intact = {key.node_id for key in self._oracle.voters.intact(voters)} - {node_id}
            if len(intact) < majority_of(voters):
                return
        self._nodes[node_id].lose_disk(DOWN_US)

    def _possible_sets(self) -> Iterator[frozenset[Key]]:
        """Yield the sets that some node counts, or may count after a truncation."""
        committed = self._oracle.committed
        yield self._oracle.voters.in_force(committed)
        for log in self._oracle.logs.values():
            yield self._oracle.voters.in_force(log[: len(committed)])
            for entry in log[len(committed) :]:
                if is_voters(entry):
                    yield keys_in(entry)
        yield from self._sets_of_requests()

    def _sets_of_requests(self) -> set[frozenset[Key]]:
        """Return the sets that the requests under way may make; a restart drops a node's."""
        self._under_way = [one for one in self._under_way if one[0].driver is one[1]]
        sets: dict[int, set[frozenset[Key]]] = {}
        for node, _, request in self._under_way:
            now = self._oracle.voters.in_force(self._oracle.logs[node.node_id])
            of_node = sets.setdefault(node.node_id, {now})
            of_node |= {_changed(voters, request) for voters in of_node}
        return {voters for of_node in sets.values() for voters in of_node}


_UnderWay = tuple[QuorumNode, ObservedDriver, VoterChangeRequest]


def _changed(voters: frozenset[Key], request: VoterChangeRequest) -> frozenset[Key]:
    match request:
        case AddVoterRequest(voter=voter):
            return voters | {Key(voter.voter_id, voter.directory_id)}
        case RemoveVoterRequest(voter_id=voter_id, directory_id=directory_id):
            return voters - {Key(voter_id, directory_id)}
        case _:
            return voters
