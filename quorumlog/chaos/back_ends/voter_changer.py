"""An administrator that removes voters from the metadata quorum and adds them (KIP-853).

It uses the public API, and only for changes that a quorum survives: a majority of the remaining
voters has the directories that the cluster has recorded. The voter of a lost disk is removed before
the node is added with its new directory.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from quorumlog.chaos.back_ends.admin_churner import REFUSED
from quorumlog.chaos.back_ends.back_end import NodeUnavailable
from quorumlog.chaos.drivers.security import NO_PROTECTION
from quorumlog.client import Admin, KafkaError
from quorumlog.client.descriptions import QuorumDescription, QuorumReplica

OPERATIONS: Final = frozenset({"raise_kraft_version", "remove_voter", "add_voter"})
_FEATURE: Final = "kraft.version"
_CHANGING_VOTERS: Final = 1  # the level of that feature at which voters can change
_CALL_TIMEOUT_S: Final = 5.0
_IN_DOUBT_S: Final = 30.0  # the longest delay of a request without a response
_REMOVE_TIMEOUT_S: Final = 10.0  # unless an error rules the change out
_ADD_TIMEOUT_S: Final = 20.0  # the node may be starting, and the quorum may have no leader
_PAUSE_S: Final = 0.25

DirectoryOf = Callable[[int], bytes | None]
"""Returns the id of a node's metadata directory; None: its disk is empty, or the id is unknown."""
Told = Callable[[str, int], object]
"""Called with an operation and its node when the cluster has acknowledged the change."""


class VoterChanger:
    """One changer per run, for the nodes `controllers`. `changes`: those that the cluster has made.

    A change without a response, or with an error that does not rule it out, is unknown: it may be
    made later.
    """

    def __init__(
        self,
        bootstrap: str,
        protection: Mapping[str, Any] = NO_PROTECTION,
        *,
        controllers: Collection[int],
        directory_of: DirectoryOf,
        now_s: Callable[[], float],
        told: Told = lambda _, __: None,
    ) -> None:
        self._bootstrap: Final = bootstrap
        self._protection: Final = protection  # of clients of quorumlog
        self._controllers: Final = controllers
        self._directory_of: Final = directory_of
        self._now_s: Final = now_s
        self._told: Final = told
        self._asking = 0
        self._in_doubt_until_s = 0.0
        self._is_raised = False  # kraft.version
        self._has_asked = False
        self._gone: Final[dict[int, bytes | None]] = {}  # the last directory that a node has lost
        self.changes = 0

    @property
    def is_changing(self) -> bool:
        """Whether a change may be on its way."""
        return self._asking > 0 or self._now_s() < self._in_doubt_until_s

    async def perform(self, operation: str, node_ids: Sequence[int]) -> None:
        """Do one of OPERATIONS for one node after the other.

        Raises NodeUnavailable when all were tried, with the nodes that failed.
        """
        failed: dict[int, str] = {}
        for node_id in node_ids:
            try:
                if operation == "add_voter":
                    await self._add(node_id)
                else:
                    await self._remove_or_raise(operation, node_id)
            except NodeUnavailable as error:
                failed[node_id] = str(error)
        if failed:
            raise NodeUnavailable("; ".join(failed.values()), tuple(failed))

    async def why_not_wipe(self, node_id: int) -> str:
        """Return why the quorum needs the disk of a node, or ""."""
        if self.is_changing:
            return "the voters are changing"
        try:
            async with (
                asyncio.timeout(_CALL_TIMEOUT_S),
                Admin(self._bootstrap, **self._protection) as admin,
            ):
                voters = (await admin.describe_quorum()).voters
        except REFUSED as error:
            return f"the voters are unknown: {_text(error)}"
        if self.is_changing:  # since then
            return "the voters are changing"
        return self._why_unsafe(voters, without=node_id)

    def note_wipe(self, node_id: int) -> None:
        """Record that a disk is about to be wiped: its voter has to be replaced."""
        self._has_asked = True
        self._gone[node_id] = self._directory_of(node_id)

    # --- requests ---

    async def _remove_or_raise(self, operation: str, node_id: int) -> None:
        if node_id not in self._controllers:
            raise NodeUnavailable(f"node {node_id} is no controller")
        self._has_asked, attempts = True, 0
        deadline_s = self._now_s() + _REMOVE_TIMEOUT_S
        while True:
            try:
                async with (
                    asyncio.timeout(_CALL_TIMEOUT_S),
                    Admin(self._bootstrap, **self._protection) as admin,
                ):
                    await self._raise_kraft_version(admin)
                    if operation == "remove_voter":
                        await self._remove(admin, node_id, is_again=attempts > 0)
                    return
            except REFUSED as error:
                if _is_definite(error) or self._now_s() > deadline_s:
                    raise NodeUnavailable(_outcome(error)) from error
            attempts += 1
            await asyncio.sleep(_PAUSE_S)

    async def _raise_kraft_version(self, admin: Admin) -> None:
        if self._is_raised:
            return
        level = (await admin.describe_features())[_FEATURE].level
        if level < _CHANGING_VOTERS:
            await self._ask(admin.update_features({_FEATURE: _CHANGING_VOTERS}))
        self._is_raised = True

    async def _remove(self, admin: Admin, node_id: int, *, is_again: bool = False) -> None:
        """Remove a voter. `is_again`: an earlier attempt of unknown outcome may have removed it."""
        voters = (await admin.describe_quorum()).voters
        voter = _replica(voters, node_id)
        if voter is None and is_again:
            self.changes += 1
            return
        if voter is None:
            raise NodeUnavailable(f"failed: node {node_id} is no voter now")
        left = [one for one in voters if one is not voter]
        if left and (why := self._why_unsafe(left)):
            raise NodeUnavailable(f"failed: {why}")
        await self._ask(admin.remove_raft_voter(node_id, voter.directory_id))
        self._told("remove_voter", node_id)

    async def _add(self, node_id: int) -> None:
        """Add a controller as a voter with its current directory, if voters can change."""
        if not self._has_asked or node_id not in self._controllers:
            return
        deadline_s = self._now_s() + _ADD_TIMEOUT_S
        while why := await self._try_to_add(node_id):
            if self._now_s() > deadline_s:
                raise NodeUnavailable(f"node {node_id} is not added to the voters: {why}")
            await asyncio.sleep(_PAUSE_S)

    async def _try_to_add(self, node_id: int) -> str:
        """Return why the node is no voter yet, or ""."""
        directory_id = self._directory_of(node_id)
        if directory_id is None:
            return "its directory is unknown"
        try:
            async with (
                asyncio.timeout(_CALL_TIMEOUT_S),
                Admin(self._bootstrap, **self._protection) as admin,
            ):
                level = (await admin.describe_features())[_FEATURE].level
                if level < _CHANGING_VOTERS and not self.is_changing:
                    return ""  # the configured voters are in force
                return await self._add_as_it_is(admin, node_id, directory_id)
        except REFUSED as error:
            return _outcome(error)

    async def _add_as_it_is(self, admin: Admin, node_id: int, directory_id: bytes) -> str:
        quorum = await admin.describe_quorum()
        voter = _replica(quorum.voters, node_id)
        if voter is not None and voter.directory_id == directory_id:
            return ""
        if voter is not None:
            await self._remove(admin, node_id)
        address = _address(quorum, node_id, directory_id)
        if address is None:
            return "it does not follow the leader"
        if not self._has_now(node_id, directory_id):
            return "its disk was emptied meanwhile"
        await self._ask(admin.add_raft_voter(node_id, directory_id, address))
        self._told("add_voter", node_id)
        return ""

    async def _ask(self, change: Awaitable[None]) -> None:
        """Await a change; record whether it is in doubt."""
        self._asking += 1
        is_certain = False
        try:
            await change
            is_certain = True
            self.changes += 1
        except KafkaError as error:
            is_certain = _is_definite(error)
            raise
        finally:
            self._asking -= 1
            if not is_certain:
                self._in_doubt_until_s = self._now_s() + _IN_DOUBT_S

    def _why_unsafe(self, voters: Collection[QuorumReplica], without: int | None = None) -> str:
        """Return why a quorum of these voters must not lose the disk of `without`, or ""."""
        if not all(any(one.directory_id) for one in voters):
            return ""  # kraft.version is 0: a voter that lost its disk catches up, and votes again
        intact = [
            one
            for one in voters
            if one.replica_id != without and self._has_now(one.replica_id, one.directory_id)
        ]
        if len(intact) > len(voters) // 2:
            return ""
        ids = ", ".join(str(one.replica_id) for one in voters)
        return f"of the voters {ids}, no majority would have its disks"

    def _has_now(self, node_id: int, directory_id: bytes) -> bool:
        return self._directory_of(node_id) == directory_id != self._gone.get(node_id)


def _replica(replicas: Iterable[QuorumReplica], node_id: int) -> QuorumReplica | None:
    return next((one for one in replicas if one.replica_id == node_id), None)


def _address(quorum: QuorumDescription, node_id: int, directory_id: bytes) -> str | None:
    """Return the address of an observer with this directory; None if the leader has none."""
    observer = _replica(quorum.observers, node_id)
    if observer is None or observer.directory_id != directory_id:
        return None
    return quorum.addresses.get(node_id)


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _outcome(error: BaseException) -> str:
    """Return the outcome of a change, failed or unknown, with the error."""
    return f"{'failed' if _is_definite(error) else 'unknown'}: {_text(error)}"


def _is_definite(error: BaseException) -> bool:
    return isinstance(error, KafkaError) and error.definite
