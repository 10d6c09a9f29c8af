"""Checks the log directory ids in a broker's registration. Source: KIP-858."""

from collections.abc import Collection
from typing import Final

from quorumlog.metadata_quorum.controller_client import BrokerRegistration
from quorumlog.metadata_quorum.image.model import LOST, BrokerImage

UNASSIGNED: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
MIGRATING: Final = "AAAAAAAAAAAAAAAAAAAAAA"
RESERVED: Final = frozenset({UNASSIGNED, LOST, MIGRATING})
"""Ids that stand for no directory. Where Kafka's records have UNASSIGNED, ours have no id."""


def directories_of(broker: BrokerImage | BrokerRegistration) -> frozenset[str]:
    """Return the ids of a broker's usable directories, with that of its metadata log."""
    named = {*broker.log_dirs, broker.directory_id}
    return frozenset(one for one in named if one is not None)


def directory_problem(brokers: Collection[BrokerImage], request: BrokerRegistration) -> str | None:
    """Return the problem with the directories of a registration, or None."""
    claimed = directories_of(request)
    if claimed & RESERVED or len({*request.log_dirs}) < len(request.log_dirs):
        return f"Broker {request.broker_id} names a reserved log directory, or one twice"
    for other in brokers:
        shared = sorted(claimed & directories_of(other))
        if shared and other.broker_id != request.broker_id:
            return (
                f"Log directory {shared[0]} belongs to broker {other.broker_id}: "
                "give the copy a new directory.id in its meta.properties"
            )
    return None
