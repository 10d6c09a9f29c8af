"""Voters of the metadata quorum: added and removed (KIP-853)."""

from quorumlog.client.admin.asker import Asker
from quorumlog.wire.codec.messages.add_raft_voter import AddRaftVoterRequest, Listener
from quorumlog.wire.codec.messages.remove_raft_voter import RemoveRaftVoterRequest

LISTENER_NAME = "CONTROLLER"
PORT_MAX = 65_535


async def add(asker: Asker, voter_id: int, directory_id: bytes, address: str) -> None:
    """See Admin.add_raft_voter."""
    host, port = _parsed(address)
    request = AddRaftVoterRequest(
        voter_id=voter_id,
        voter_directory_id=_checked(directory_id),
        listeners=[Listener(name=LISTENER_NAME, host=host, port=port)],
        timeout_ms=int(asker.settings.default_api_timeout_ms),
    )
    await asker.ask(request, changes=True)


async def remove(asker: Asker, voter_id: int, directory_id: bytes) -> None:
    """See Admin.remove_raft_voter."""
    request = RemoveRaftVoterRequest(voter_id=voter_id, voter_directory_id=_checked(directory_id))
    await asker.ask(request, changes=True)


def _checked(directory_id: bytes) -> bytes:
    if not isinstance(directory_id, bytes) or len(directory_id) != 16:
        raise ValueError(f"a directory id has 16 bytes, not {directory_id!r}")
    return directory_id


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port[:6]) <= PORT_MAX:
        raise ValueError(f"{address!r} is no address: write it as host:port")
    return host.strip("[]"), int(port)
