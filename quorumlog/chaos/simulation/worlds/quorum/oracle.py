"""The rules of every run, checked from outside all nodes, at every event that could break them.

Sources: Raft figure 3 (election safety, log matching, leader completeness, state machine safety);
KAFKA-10527, KAFKA-12460, KAFKA-12619.
"""

from typing import Final

from quorumlog.chaos.simulation.kernel.rules import check
from quorumlog.chaos.simulation.worlds.entries import Entry
from quorumlog.chaos.simulation.worlds.quorum.quotas import Quotas, quotas_after
from quorumlog.chaos.simulation.worlds.quorum.voter_model import (
    Key,
    VoterModel,
    is_voters,
    majority_of,
)


class Oracle:
    """Holds the facts that may never change, over all nodes and crashes.

    - the one leader of each epoch, from roles and from messages (election safety);
    - the one vote of each (node, epoch), from disks and from messages;
    - for each (offset, epoch) one content and one epoch before it (log matching, by induction);
    - the committed entries, by offset, for ever; the acknowledged entries are among them;
    - per node: the highest epoch that it showed, the end of its log that it made durable.

    A machine that gets a new disk is another node from then on: see `VoterModel`.
    """

    def __init__(self, node_ids: tuple[int, ...], voters: tuple[int, ...]) -> None:
        self.committed: list[Entry] = []
        self.acknowledged: dict[int, Entry] = {}
        self.logs: Final[dict[int, list[Entry]]] = {node_id: [] for node_id in node_ids}
        self.durable_ends: Final = dict.fromkeys(node_ids, 0)
        self.shown_epochs: Final = dict.fromkeys(node_ids, 0)
        self.leaders: Final[dict[int, int]] = {}
        self._compared = dict.fromkeys(node_ids, 0)  # up to where a log was as committed
        self._high_watermarks = dict.fromkeys(node_ids, 0)  # of the processes that run
        self.voters: Final = VoterModel(voters)
        self._lost: dict[Key, tuple[list[Entry], int]] = {}  # log and durable end of lost disks
        self._votes: dict[tuple[Key, int], int] = {}
        self._contents: dict[tuple[int, int], tuple[Entry, int]] = {}
        self._committed_in: dict[int, int] = {}  # epoch of the leader -> end
        self._installing: dict[int, int] = {}  # node -> end of the snapshot
        self._states: list[Quotas] = [{}]  # of the committed entries, by their end

    # --- elections ---

    def saw_leader(self, node_id: int, epoch: int) -> None:
        """Note that a node leads, by its role or by its messages."""
        other = self.leaders.setdefault(epoch, node_id)
        check(other == node_id, f"one-leader: {other} and {node_id} lead epoch {epoch}")

    def became_leader(self, node_id: int, epoch: int) -> None:
        """Note an election: the winner holds all that leaders of older epochs committed."""
        self.saw_leader(node_id, epoch)
        ends = [end for older, end in self._committed_in.items() if older < epoch]
        end = max(ends, default=0)
        holds = self.logs[node_id][:end] == self.committed[:end]
        check(
            holds, f"leader-completeness: {node_id} leads epoch {epoch} without records below {end}"
        )
        if self.voters.directories:
            self._check_election(node_id, epoch)

    def _check_election(self, node_id: int, epoch: int) -> None:
        """Check that the winner may lead, and has the votes of a majority, by its own log."""
        log = self.logs[node_id]
        check(self._may_stand(node_id), f"leader-votes: {node_id} leads {epoch}, and is no voter")
        voters = self.voters.in_force(log)
        voted = [one for one in voters if self._votes.get((self._known(one), epoch)) == node_id]
        rule = f"elected: {node_id} leads epoch {epoch} with {len(voted)} votes of {len(voters)}"
        check(len(voted) >= majority_of(voters), rule)

    def _known(self, voter: Key) -> Key:
        return voter if voter.directory_id else self.voters.key_of(voter.node_id)

    def stands(self, node_id: int) -> None:
        """Note that a node requests votes: it is a voter, or its removal may be truncated."""
        check(self._may_stand(node_id), f"stands: {node_id} requests votes, but is no voter")

    def _may_stand(self, node_id: int) -> bool:
        log, known = self.logs[node_id], self._high_watermarks[node_id]
        ends = [known, *(at for at in range(known + 1, len(log) + 1) if is_voters(log[at - 1]))]
        return any(self.voters.is_voter(node_id, log[:end]) for end in ends)

    def votes_as(self, node_id: int, directory_id: str | None) -> None:
        """Note that a node grants a vote as the voter with this directory; None: with any."""
        is_meant = directory_id in {None, self.voters.key_of(node_id).directory_id}
        check(is_meant, f"votes-as: {node_id} votes for a directory that it has lost")

    def saw_vote(self, node_id: int, epoch: int, candidate_id: int) -> None:
        """Note a vote on a disk or in a message."""
        other = self._votes.setdefault((self.voters.key_of(node_id), epoch), candidate_id)
        rule = f"one-vote: {node_id} votes for {other} and {candidate_id} in epoch {epoch}"
        check(other == candidate_id, rule)

    def remembered(self, node_id: int, epoch: int, voted_id: int) -> None:
        """Compare the vote that a node reads from its disk with its vote of that epoch."""
        given = self._votes.get((self.voters.key_of(node_id), epoch), voted_id)
        rule = f"vote-durable: {node_id} voted for {given} in epoch {epoch}, recovered {voted_id}"
        check(given == voted_id, rule)

    def showed_epoch(self, node_id: int, epoch: int) -> None:
        """Note the epoch of a message."""
        shown = self.shown_epochs[node_id]
        check(epoch >= shown, f"epoch-monotone: {node_id} went back from {shown} to {epoch}")
        self.shown_epochs[node_id] = epoch

    # --- logs ---

    def appended(self, node_id: int, entries: list[Entry]) -> None:
        """Note new entries at the end of a node's log."""
        log = self.logs[node_id]
        for entry in entries:
            before = log[-1].epoch if log else 0
            if is_voters(entry):
                self.voters.check_change(node_id, log, entry)
            known = self._contents.setdefault((len(log), entry.epoch), (entry, before))
            check(
                known == (entry, before),
                f"log-matching: {node_id} has another record at {len(log)} of epoch {entry.epoch}",
            )
            log.append(entry)

    def changes_voters(self, node_id: int, epoch: int) -> None:
        """Note that a leader is about to change the voters: one change at a time, in its epoch."""
        log = self.logs[node_id]
        pending = [one for one in log[len(self.committed) :] if is_voters(one)]
        check(not pending, f"one-change: {node_id} changes voters before the last change is made")
        has_committed = epoch in self._committed_in
        check(has_committed, f"change-own-epoch: {node_id} changes voters too soon in {epoch}")

    def counts(self, node_id: int, voters: frozenset[Key]) -> None:
        """Compare the voters that a node counts with the voters of its log, perhaps none."""
        said = self.voters.said_by(self.logs[node_id])
        check(voters == said, f"voters-in-force: {node_id} counts {voters}, its log has {said}")

    def lost_disk(self, node_id: int, new_directory_id: str) -> None:
        """Note that a machine has an empty disk: its vote and its records are lost."""
        key = self.voters.key_of(node_id)
        self._lost[key] = self.logs[node_id], self.durable_ends[node_id]
        self.voters.directories[node_id] = new_directory_id
        self.voters.new.add(self.voters.key_of(node_id))
        self.logs[node_id] = []
        self._installing.pop(node_id, None)
        for known in (
            self.durable_ends, self.shown_epochs, self._compared, self._high_watermarks,
        ):  # fmt: skip
            known[node_id] = 0

    def may_vote(self, node_id: int) -> None:
        """Note that the files of a node allow it to vote from now on."""
        self.voters.new.discard(self.voters.key_of(node_id))

    def truncates(self, node_id: int, end: int) -> None:
        """Note the begin of a truncation: no committed entry may go that its leader had to hold.

        Until a node receives a newer epoch, it follows an older leader, which need not hold the
        entries that the newer leader has committed meanwhile.
        """
        log, shown = self.logs[node_id], self.shown_epochs[node_id]
        known = [known for epoch, known in self._committed_in.items() if epoch <= shown]
        below = min(max(self._high_watermarks[node_id], *known, 0), len(log))
        goes = log[end:below] == self.committed[end:below] and end < below
        check(not goes, f"no-truncation-below-commit: {node_id} cuts at {end} of {below}")
        self.durable_ends[node_id] = min(self.durable_ends[node_id], end)
        self._compared[node_id] = min(self._compared[node_id], end)

    def truncated(self, node_id: int, end: int) -> None:
        """Note the end of a truncation."""
        del self.logs[node_id][end:]

    def flushed(self, node_id: int, end: int) -> None:
        """Note the content of a node's disk after a power loss."""
        self.durable_ends[node_id] = max(self.durable_ends[node_id], end)

    def recovered(self, node_id: int, entries: list[Entry], epoch: int) -> None:
        """Compare the content of a node's disk with the entries that the node had made durable."""
        before, durable = self.logs[node_id], self.durable_ends[node_id]
        end = self._installing.pop(node_id, 0)
        if end and len(entries) == end and entries == self.committed[:end]:
            before, durable = entries, end  # the crash came after the log was dropped
        check(entries[:durable] == before[:durable], f"durability: {node_id} lost a flushed record")
        is_prefix = entries == before[: len(entries)]
        check(is_prefix, f"recovery: {node_id} found records it had not written")
        shown = self.shown_epochs[node_id]
        check(epoch >= shown, f"epoch-durable: {node_id} showed epoch {shown}, recovered {epoch}")
        self.logs[node_id] = entries
        self.durable_ends[node_id] = len(entries)
        self._compared[node_id] = self._high_watermarks[node_id] = 0

    # --- snapshots ---

    def records_below(self, node_id: int, start: int, end: int, state: Quotas) -> list[Entry]:
        """Return the entries below `start`, which the snapshot of such a log must hold."""
        check(start <= end, f"no-gap: {node_id} has records from {start}, a snapshot to {end}")
        self.applied(node_id, end, state)
        return self.committed[:start]

    def applied(self, node_id: int, end: int, state: Quotas) -> None:
        """Compare the state of a node with that of all records below `end`."""
        check(end <= len(self.committed), f"snapshot-committed: {node_id} has a state at {end}")
        while len(self._states) <= end:
            entry = self.committed[len(self._states) - 1]
            self._states.append(quotas_after(self._states[-1], [entry]))
        check(state == self._states[end], f"applied-equal: {node_id} has another state at {end}")

    def installs(self, node_id: int, end: int, state: Quotas) -> None:
        """Note that a node gives up its log for a snapshot."""
        known = self._high_watermarks[node_id]
        check(end >= known, f"snapshot-behind: {node_id} has {known}, installs {end}")
        self.applied(node_id, end, state)
        self._installing[node_id] = end

    def installed(self, node_id: int) -> None:
        """Note that the log starts where the snapshot ends, durably."""
        end = self._installing.pop(node_id)
        self.logs[node_id] = self.committed[:end]
        self.durable_ends[node_id] = self._compared[node_id] = end

    # --- commits ---

    def advanced(self, node_id: int, end: int, *, leads_epoch: int | None) -> None:
        """Note a node's new high watermark; `leads_epoch` if it is a leader."""
        log = self.logs[node_id]
        known, self._high_watermarks[node_id] = self._high_watermarks[node_id], end
        check(end > known, f"commit-monotone: {node_id} went from {known} to {end}")
        check(end <= len(log), f"commit-held: {node_id} has {len(log)} of {end}")
        if leads_epoch is not None:
            self._led_commit(node_id, end, leads_epoch)
        start, agreed = self._compared[node_id], min(end, len(self.committed))
        is_agreed = log[start:agreed] == self.committed[start:agreed]
        check(is_agreed, f"commit-agreed: {node_id} below {agreed}")
        self._compared[node_id] = agreed
        is_new = end > len(self.committed)
        check(leads_epoch is not None or not is_new, f"commit-led: {node_id} has {end} first")
        self.committed += log[agreed:end]

    def _led_commit(self, node_id: int, end: int, epoch: int) -> None:
        log = self.logs[node_id]
        last = log[end - 1]
        check(last.epoch == epoch, f"commit-own-epoch: {node_id} commits {last.epoch} in {epoch}")
        voters = self.voters.in_force(log)
        holders = sorted(one.node_id for one in voters if self._holds(one, end, last))
        rule = f"commit-durable: {end} of epoch {epoch} is durable on {holders} alone"
        check(len(holders) >= majority_of(voters), rule)
        self._committed_in[epoch] = max(end, self._committed_in.get(epoch, 0))

    def _holds(self, voter: Key, end: int, last: Entry) -> bool:
        """Return whether a voter has, or had on the disk that it lost, this record durably."""
        now = self.logs[voter.node_id], self.durable_ends[voter.node_id]
        log, durable_end = self._lost.get(voter, now)
        return durable_end >= end and log[end - 1] == last

    def acknowledge(self, offset: int, entry: Entry) -> None:
        """Note that a client received the acknowledgement of its record."""
        is_held = offset < len(self.committed) and self.committed[offset] == entry
        check(is_held, f"acked-committed: {offset} was acknowledged")
        self.acknowledged[offset] = entry

    def finish(self, node_id: int, entries: list[Entry]) -> None:
        """Compare a node's disk, at the end, with its messages and the acknowledged records."""
        check(entries == self.logs[node_id], f"log-file: {node_id} holds unappended records")
        for offset, entry in self.acknowledged.items():
            is_there = entries[offset : offset + 1] == [entry]
            check(is_there, f"acked-lost: {node_id} at {offset}")
        end = len(self.committed)
        check(entries[:end] == self.committed, f"converged: {node_id} lacks committed records")
