"""Several log directories of one broker: what they need, and what becomes of those that fail.

In which directory each replica is, the broker says: `partitions.decide_assignment`. Source:
KIP-858.
"""

from collections.abc import Sequence

from quorumlog.metadata_quorum.controller.brokers import Session
from quorumlog.metadata_quorum.controller.features import level_for, levels_of_new_cluster
from quorumlog.metadata_quorum.controller.log_loss import FAILED
from quorumlog.metadata_quorum.controller.min_insync_replicas import records_of_new_cluster
from quorumlog.metadata_quorum.controller.requests import Decision
from quorumlog.metadata_quorum.controller.slices import Slices
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    HeartbeatReply,
    RegistrationReply,
)
from quorumlog.metadata_quorum.image.features import LEVEL_OF_DIRECTORIES, METADATA_FEATURE
from quorumlog.metadata_quorum.image.model import BrokerImage
from quorumlog.metadata_quorum.image.records import BrokerRegistrationChange, MetadataRecord
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.wire.codec.error_codes import ErrorCode


def levels_for_registration(
    cluster: ClusterReplay, request: BrokerRegistration
) -> tuple[tuple[MetadataRecord, ...], RegistrationReply | None]:
    """Return the records to write before a registration, or its refusal.

    They say the levels of a new cluster and its min.insync.replicas, and the level that several log
    directories need.
    """
    levels = levels_of_new_cluster(cluster, request.features)
    first = records_of_new_cluster(levels, request)
    begins_at = max((one.level for one in levels if one.name == METADATA_FEATURE), default=0)
    if not request.log_dirs or begins_at >= LEVEL_OF_DIRECTORIES:
        return first, None
    level, problem = level_for(cluster, LEVEL_OF_DIRECTORIES, request)
    if problem is None:
        return first if level is None else (*first, level), None
    message = (
        f"Broker {request.broker_id} has several log.dirs (until it can use them, start it with "
        f"the one that it had). {problem.error_message}"
    )
    return (), RegistrationReply(error_code=problem.error_code, error_message=message)


def newly_failed(broker: BrokerImage, heartbeat: BrokerHeartbeat) -> list[str]:
    """Return the directories of which the registration says yet that the broker can use them.

    Never all: a broker that has lost its last one asks to be fenced instead.
    """
    failed = [one for one in broker.log_dirs if one in heartbeat.offline_log_dirs]
    return failed if len(failed) < len(broker.log_dirs) else []


def decide_all_failed(
    slices: Slices, broker: BrokerImage, session: Session
) -> Decision[HeartbeatReply]:
    """Take a broker that can use no log directory any more out of ISRs and ELRs, once.

    What the disk had not written yet may be lost, whatever the process serves until it ends. It is
    fenced, as it wants to be, by what is decided next.
    """
    reply = HeartbeatReply(error_code=ErrorCode.NONE, is_fenced=broker.fenced)
    departure = slices.departure(broker.broker_id, FAILED)
    session.has_failed = departure.is_whole
    remark = f"broker {broker.broker_id} can use no log directory any more"
    return Decision(
        response=reply,
        records=(*departure.changes,),
        remark=remark if departure.is_whole else None,
        goes_on=True,
    )


def decide_failed(
    slices: Slices, broker: BrokerImage, failed: Sequence[str]
) -> Decision[HeartbeatReply]:
    """Take a broker out of the ISRs of what it cannot use any more, then note that.

    In this order: the next heartbeat repeats a decision that is half written.
    """
    reply = HeartbeatReply(error_code=ErrorCode.NONE, is_fenced=broker.fenced)
    departure = slices.departure_of_directories(broker.broker_id, failed)
    if not departure.is_whole:
        return Decision(response=reply, records=(*departure.changes,), goes_on=True)
    change = BrokerRegistrationChange(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        log_dirs=tuple(one for one in broker.log_dirs if one not in failed),
    )
    remark = (
        f"broker {broker.broker_id} cannot use its log directories {', '.join(failed)} any more"
    )
    return Decision(response=reply, records=(*departure.changes, change), remark=remark)
