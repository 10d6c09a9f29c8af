"""The addresses of the other nodes' control listeners: `host:port` by node id.

The first of these sources that has the node is used:

1. `overrides` (`peer.control.addresses`);
2. at kraft.version 0, the configured voters;
3. the address that a leader sent when its epoch began: it may have moved since the voters were
   written;
4. the voter set in force (KIP-853);
5. the leader's address in another node's message, or a sender's address in its own request;
6. the configured voters.

Requests for the leader also go to the bootstrap addresses, by the ids -2, -3 and so on, as in
Kafka.
"""

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from quorumlog.metadata_quorum.core.messages import BeginQuorumEpochRequest
from quorumlog.metadata_quorum.core.voter_sets import Voter, VoterSet, is_address
from quorumlog.metadata_quorum.settings import MetadataQuorumSettings
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId

HEARD_MAX: Final = 10_000  # nodes; then the oldest address is dropped
FIRST_BOOTSTRAP_ID: Final = -2
_logger: Final = logging.getLogger(__name__)
_NOTHING: Final[Mapping[BrokerId, str]] = MappingProxyType({})


class AddressBook:
    """The addresses of other nodes. Addresses from peers are checked: peers are untrusted.

    `kraft_version`: that of the voter set in force.
    """

    def __init__(
        self,
        configured: Mapping[BrokerId, str],
        *,
        overrides: Mapping[BrokerId, str] = _NOTHING,
        bootstrap: Sequence[str] = (),
        own: Voter | None = None,
    ) -> None:
        """`own`: this node, with its directory; None: it has none, so it cannot be a voter."""
        self._configured: Final = dict(configured)
        self._overrides: Final = dict(overrides)
        self._bootstrap: Final = tuple(bootstrap)
        self._own: Final = own
        self._voters: VoterSet | None = None
        self._own_words: dict[BrokerId, str] = {}  # of leaders, in their BeginQuorumEpoch
        self._heard: Final[dict[BrokerId, str]] = {}

    @classmethod
    def of(cls, settings: MetadataQuorumSettings) -> "AddressBook":
        """Return the address book of a node's configuration."""
        overrides, bootstrap = settings.peer_addresses, settings.bootstrap
        own = None
        if settings.directory_id is not None:
            own = Voter(voter_id=settings.node_id, directory_id=settings.directory_id)
        return cls(settings.voters, overrides=overrides, bootstrap=bootstrap, own=own)

    @property
    def kraft_version(self) -> int:
        """0: the configured voters are in force; 1: the voters in the log."""
        return 0 if self._voters is None else 1

    @property
    def configured_voters(self) -> VoterSet:
        """The voters of kraft.version 0."""
        voters = self._configured.items()
        return VoterSet(tuple(Voter(voter_id=one, address=address) for one, address in voters))

    def voters_changed(self, voters: VoterSet | None) -> None:
        """Handle another voter set in force; None: the configured voters are in force."""
        if voters is not None:
            shown = ", ".join(f"{one.voter_id} at {one.address}" for one in voters.voters)
            _logger.info("the voters are %s", shown)
            self._warn_if_replaced(voters)
        self._voters = voters
        self._own_words = {}  # the set is newer

    def _warn_if_replaced(self, voters: VoterSet) -> None:
        own = self._own
        known = None if own is None else voters.get(own.voter_id)
        if own is not None and known is not None and known.directory_id != own.directory_id:
            _logger.warning(
                "the voters name node %d with directory %s, and its directory is %s: it has no "
                "vote until it replaces itself (controller.quorum.auto.join.enable), or "
                "`quorumlog quorum remove-voter` and `add-voter` replace it. The majority is "
                "counted with the other directory",
                own.voter_id,
                known.directory_id,
                own.directory_id,
            )

    def hear_request(self, sender_id: int, sender_address: str, request: object) -> None:
        """Store the address of a request's sender, and the leader's in a BeginQuorumEpoch."""
        self._hear(sender_id, sender_address)
        if isinstance(request, BeginQuorumEpochRequest) and is_address(request.leader_address):
            self._hear(request.leader_id, request.leader_address)
            if self._voters is not None and self._voters.get(request.leader_id) is not None:
                self._own_words[request.leader_id] = request.leader_address

    def hear_response(self, response: Any) -> None:
        """Store the leader's address, if the response contains it."""
        address = getattr(response, "leader_address", "")
        if address:
            self._hear(response.leader_id, address)

    def find(self, node_id: BrokerId) -> str | None:
        """Return the address of a node; None: unknown."""
        if node_id <= FIRST_BOOTSTRAP_ID:
            index = FIRST_BOOTSTRAP_ID - node_id
            return self._bootstrap[index] if index < len(self._bootstrap) else None
        return self._overrides.get(node_id) or self.known_to_all(node_id)

    def known_to_all(self, node_id: BrokerId) -> str | None:
        """Return a node's address for use by any node: without our own overrides."""
        voters = self._voters
        if voters is None:
            return self._configured.get(node_id) or self._heard.get(node_id)
        voter = voters.get(node_id)
        return (
            self._own_words.get(node_id)
            or (voter.address if voter is not None else "")
            or self._heard.get(node_id)
            or self._configured.get(node_id)
        )

    def voter_addresses(self) -> dict[BrokerId, str]:
        """Return the voters in force, sorted, with their addresses; empty: unknown."""
        ids = sorted(self._configured) if self._voters is None else self._voters.ids
        return {voter_id: self.known_to_all(voter_id) or "" for voter_id in ids}

    def _hear(self, node_id: int, address: str) -> None:
        if node_id <= NO_LEADER or not is_address(address):
            return
        self._heard.pop(BrokerId(node_id), None)
        self._heard[BrokerId(node_id)] = address
        if len(self._heard) > HEARD_MAX:
            del self._heard[next(iter(self._heard))]
