"""Voters by their numbers: node 1 with directory "1" at host1:1, and so on."""

from quorumlog.metadata_quorum.core.voter_sets import Voter, VoterSet
from quorumlog.storage.io.checkpoints import uuid_to_text
from quorumlog.wire.codec.identifiers import BrokerId


def directory_id(name: str) -> str:
    """Return the id of the directory that a test calls so."""
    return uuid_to_text(name.encode().rjust(16, b"-"))


def voter(number: int, directory: str | None = None) -> Voter:
    """Return the voter of this number, with its own directory or another."""
    return Voter(
        voter_id=BrokerId(number),
        directory_id=directory_id(str(number) if directory is None else directory),
        address=f"host{number}:{number}",
    )


def voter_set(*numbers: int) -> VoterSet:
    """Return the voters of these numbers."""
    return VoterSet(tuple(map(voter, numbers)))
