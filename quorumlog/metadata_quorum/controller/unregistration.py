"""Unregisters brokers that will not return. Source: KIP-500; Kafka's `unregisterBroker`.

# DEVIATION: Kafka unregisters any broker, also in service or as the only holder of records.
# docs/decisions/0012-registrations.md
"""

from typing import Final

from quorumlog.metadata_quorum.cluster_changes import DONE, Outcome, UnregisterBroker
from quorumlog.metadata_quorum.controller.log_loss import ALL_LOST, listed
from quorumlog.metadata_quorum.controller.partitions import PartitionDecisions
from quorumlog.metadata_quorum.image import records
from quorumlog.metadata_quorum.image.records import MetadataRecord
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.wire.codec.error_codes import ErrorCode

Decided = tuple[tuple[MetadataRecord, ...], tuple[Outcome, ...]]
_REMEDY: Final = "start it again, delete the topics, or hold an unclean election"


def decide_unregistration(
    cluster: ClusterReplay, partitions: PartitionDecisions, request: UnregisterBroker
) -> Decided:
    """Take a broker out of all ELRs, then unregister it. Its replicas stay in the assignments."""
    broker_id = request.broker_id
    broker = cluster.brokers.get(broker_id)
    if broker is None:
        message = f"Broker ID {broker_id} is not currently registered"
        return _refused(ErrorCode.BROKER_ID_NOT_REGISTERED, message)
    if not broker.fenced:
        message = f"Broker {broker_id} is in service: stop it before it is unregistered"
        return _refused(ErrorCode.INVALID_REQUEST, message)
    held_alone = partitions.held_alone_by(broker_id)
    if held_alone:
        names = listed(held_alone)
        message = f"Only broker {broker_id} is known to have all records of {names}: {_REMEDY}"
        return _refused(ErrorCode.INVALID_REQUEST, message)
    # ALL_LOST: a process that registers under this id later counts as an empty log.
    changes = partitions.decide_departure(broker_id, ALL_LOST).changes
    forget = records.UnregisterBroker(broker_id=broker_id, broker_epoch=broker.broker_epoch)
    return (*changes, forget), (DONE,)


def _refused(error_code: ErrorCode, message: str) -> Decided:
    return (), (Outcome(error_code=error_code, error_message=message),)
