"""Several log directories of one broker: their metadata level, and failed directories.

The broker itself reports the directory of each replica: `partitions.decide_assignment`.
Source: KIP-858.
"""

from collections.abc import Sequence

from quorumlog.metadata_quorum.controller.brokers import Session
from quorumlog.metadata_quorum.controller.decision import Decision
from quorumlog.metadata_quorum.controller.features import level_for, levels_of_new_cluster
from quorumlog.metadata_quorum.controller.log_loss import FAILED
from quorumlog.metadata_quorum.controller.min_insync_replicas import records_of_new_cluster
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

    They set the levels and min.insync.replicas of a new cluster, and the level that several log
    directories require.
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
    """Return the failed directories that the registration still lists as usable.

    Never all of them: a broker without a usable directory requests to be fenced instead.
    """
    failed = [one for one in broker.log_dirs if one in heartbeat.offline_log_dirs]
    return failed if len(failed) < len(broker.log_dirs) else []


def decide_all_failed(
    slices: Slices, broker: BrokerImage, session: Session
) -> Decision[HeartbeatReply]:
    """Take a broker out of ISRs and ELRs, once, after its last log directory has failed.

    Unflushed records may be lost, although the process may serve them until it ends. The next
    decision fences the broker, as it requested.
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
    """Take a broker out of the ISRs of replicas in failed directories, then register the failure.

    In this order: the next heartbeat repeats a half-written decision.
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
