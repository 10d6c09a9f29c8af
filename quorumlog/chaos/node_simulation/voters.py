"""The voters of simulated machines: what changes them, and the disks that they need."""

from collections.abc import Iterable, Mapping, Set
from typing import Final

from quorumlog.chaos.back_ends.voter_changer import Told, VoterChanger
from quorumlog.chaos.node_simulation.loop import SimulatedLoop
from quorumlog.chaos.node_simulation.machine import Machine
from quorumlog.storage.io.checkpoints import uuid_from_text


class SimulatedVoters:
    """Those of one run, of the machines with the role controller."""

    def __init__(
        self,
        machines: Mapping[int, Machine],
        bootstrap: str,
        *,
        loop: SimulatedLoop,
        told: Told,
    ) -> None:
        self._machines: Final = machines
        self._directories: Final[dict[int, str]] = {}
        self.changer: Final = VoterChanger(
            bootstrap,
            controllers=[one.node_id for one in machines.values() if one.is_controller],
            directory_of=self._directory_of,
            now_s=lambda: loop.now_s,
            told=told,
        )

    def _directory_of(self, node_id: int) -> bytes | None:
        """Return the id of the metadata directory that a machine has now, or had when it ran."""
        self.look()
        text = self._directories.get(node_id)
        return None if text is None else uuid_from_text(text)

    def look(self) -> None:
        """Take note of the directories of what runs: they are still asked for when it is killed."""
        for node_id, machine in self._machines.items():
            if machine.node is not None and machine.node.quorum.settings.directory_id is not None:
                self._directories[node_id] = machine.node.quorum.settings.directory_id

    def wiped(self, machines: Iterable[Machine]) -> None:
        """Take note of disks that are empty now, unless they are not those of the quorum."""
        for machine in machines:
            if not machine.disk_faults.fails_below:
                self.changer.note_wipe(machine.node_id)
                self._directories.pop(machine.node_id, None)

    def why_needed(self, without: Set[int]) -> str:
        """Say why the quorum needs the disks of these machines, or "".

        The others follow one leader, and what their logs hold is committed: the voters there are
        those in force, and no others can come into force.
        """
        if self.changer.is_changing:
            return "the voters are changing"
        self.look()
        others = [one for one in self._machines.values() if one.node_id not in without]
        known = next((one.node for one in others if one.node is not None), None)
        if known is None:
            return "no other node runs"
        quorum = known.quorum._quorum  # noqa: SLF001 - a simulator looks where no caller may
        if quorum.kraft_version == 0:
            return ""
        voters = quorum.voter_set.voters
        intact = [
            one.voter_id
            for one in voters
            if one.voter_id not in without
            and self._directories.get(one.voter_id) == one.directory_id
        ]
        if len(intact) > len(voters) // 2:
            return ""
        return f"of the voters {quorum.voter_set} only {intact} would have their disks"
