"""The voters of simulated machines: changes of them, and the disks that the quorum needs."""

from collections.abc import Iterable, Mapping, Set
from typing import Any, Final

from quorumlog.chaos.back_ends.voter_changer import Told, VoterChanger
from quorumlog.chaos.node_simulation.loop import SimulatedLoop
from quorumlog.chaos.node_simulation.machine import Machine
from quorumlog.storage.io.checkpoints import uuid_from_text


class SimulatedVoters:
    """The voters of one run: machines with the role controller."""

    def __init__(
        self,
        machines: Mapping[int, Machine],
        bootstrap: str,
        protection: Mapping[str, Any],
        *,
        loop: SimulatedLoop,
        told: Told,
    ) -> None:
        self._machines: Final = machines
        self._directories: Final[dict[int, str]] = {}
        self.changer: Final = VoterChanger(
            bootstrap,
            protection,
            controllers=[one.node_id for one in machines.values() if one.is_controller],
            directory_of=self._directory_of,
            now_s=lambda: loop.now_s,
            told=told,
        )

    def _directory_of(self, node_id: int) -> bytes | None:
        """Return the id of a machine's metadata directory, or of its last process's directory."""
        self.look()
        text = self._directories.get(node_id)
        return None if text is None else uuid_from_text(text)

    def look(self) -> None:
        """Record the directory ids of running nodes, for use after a node is killed."""
        for node_id, machine in self._machines.items():
            if machine.node is not None and machine.node.quorum.settings.directory_id is not None:
                self._directories[node_id] = machine.node.quorum.settings.directory_id

    def wiped(self, machines: Iterable[Machine]) -> None:
        """Record the loss of metadata directories on disks that were emptied.

        With several log directories, the emptied last one is not the quorum's.
        """
        for machine in machines:
            if not machine.disk_faults.fails_below:
                self.changer.note_wipe(machine.node_id)
                self._directories.pop(machine.node_id, None)

    def why_needed(self, without: Set[int]) -> str:
        """Return why the quorum needs the disks of these machines, or "".

        The other nodes follow one leader, and their logs have no uncommitted records. So the voters
        in their logs are in force, and no other voters can come into force.
        """
        if self.changer.is_changing:
            return "the voters are changing"
        self.look()
        others = [one for one in self._machines.values() if one.node_id not in without]
        known = next((one.node for one in others if one.node is not None), None)
        if known is None:
            return "no other node runs"
        quorum = known.quorum._quorum  # noqa: SLF001 - a simulator reads private state
        if quorum.state.kraft_version == 0:
            return ""
        voters = quorum.state.voter_set.voters
        intact = [
            one.voter_id
            for one in voters
            if one.voter_id not in without
            and self._directories.get(one.voter_id) == one.directory_id
        ]
        if len(intact) > len(voters) // 2:
            return ""
        return f"of the voters {quorum.state.voter_set} only {intact} would have their disks"
