"""Decides changes of the cluster besides topics: brokers, features, groups, ACLs, quotas, SCRAM."""

from typing import Final, assert_never

from quorumlog.metadata_quorum.cluster_changes import (
    DONE,
    AccessChange,
    AlterClientMetrics,
    AlterClientQuotas,
    AlterGroupConfigs,
    AlterScramCredentials,
    ClusterChange,
    CreateAcls,
    DeleteAcls,
    Outcome,
    Outcomes,
    ResourceChange,
    UnregisterBroker,
    UpdateFeatures,
    parts_of,
    refused,
)
from quorumlog.metadata_quorum.controller.access import (
    decide_acl_creation,
    decide_acl_deletion,
    decide_credentials,
    decide_quotas,
)
from quorumlog.metadata_quorum.controller.brokers import broker_epoch_error
from quorumlog.metadata_quorum.controller.decision import Decision
from quorumlog.metadata_quorum.controller.features import decide_feature_levels, level_for
from quorumlog.metadata_quorum.controller.group_configs import (
    decide_client_metrics,
    decide_group_configs,
)
from quorumlog.metadata_quorum.controller.log_loss import ALL_LOST, listed
from quorumlog.metadata_quorum.controller.partitions import PartitionDecisions
from quorumlog.metadata_quorum.controller_client import ProducerIdBlock
from quorumlog.metadata_quorum.controller_requests import AllocateProducerIds, ProducerIdsReply
from quorumlog.metadata_quorum.image import records
from quorumlog.metadata_quorum.image.features import (
    LEVEL_OF_ACCESS,
    LEVEL_OF_CLIENT_METRICS,
    LEVEL_OF_GROUP_CONFIGS,
)
from quorumlog.metadata_quorum.image.records import MetadataRecord, ProducerIds
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.settings.groups import group_limits
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset

BLOCK_IDS: Final = 1000
Decided = tuple[tuple[MetadataRecord, ...], tuple[Outcome, ...]]
_REMEDY: Final = "start it again, delete the topics, or hold an unclean election"


def decide_unregistration(
    cluster: ClusterReplay, partitions: PartitionDecisions, request: UnregisterBroker
) -> Decided:
    """Take a broker out of all ELRs, then unregister it. Its replicas stay in the assignments."""
    # DEVIATION: Kafka unregisters any broker, also in service or as the only holder of records.
    # docs/decisions/0012-registrations.md
    broker_id = request.broker_id
    broker = cluster.brokers.get(broker_id)
    if broker is None:
        message = f"Broker ID {broker_id} is not currently registered"
        return (), (refused(ErrorCode.BROKER_ID_NOT_REGISTERED, message),)
    if not broker.fenced:
        message = f"Broker {broker_id} is in service: stop it before it is unregistered"
        return (), (refused(ErrorCode.INVALID_REQUEST, message),)
    held_alone = partitions.held_alone_by(broker_id)
    if held_alone:
        names = listed(held_alone)
        message = f"Only broker {broker_id} is known to have all records of {names}: {_REMEDY}"
        return (), (refused(ErrorCode.INVALID_REQUEST, message),)
    # ALL_LOST: a process that registers under this id later counts as an empty log.
    changes = partitions.decide_departure(broker_id, ALL_LOST).changes
    forget = records.UnregisterBroker(broker_id=broker_id, broker_epoch=broker.broker_epoch)
    return (*changes, forget), (DONE,)


def decide_producer_ids(
    cluster: ClusterReplay, request: AllocateProducerIds
) -> Decision[ProducerIdsReply]:
    """Reserve the next block. Refuse a stale broker epoch: the process may have been replaced."""
    error_code = broker_epoch_error(cluster, request.broker_id, request.broker_epoch)
    if error_code is not ErrorCode.NONE:
        return Decision(response=ProducerIdsReply(error_code=error_code))
    first = cluster.next_producer_id
    record = ProducerIds(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        next_producer_id=first + BLOCK_IDS,
    )
    block = ProducerIdBlock(first=first, count=BLOCK_IDS)
    return Decision(
        response=ProducerIdsReply(error_code=ErrorCode.NONE, block=block), records=(record,)
    )


class ClusterDecisions:
    """Decides cluster changes and producer id requests; changes no state."""

    def __init__(
        self, cluster: ClusterReplay, partitions: PartitionDecisions, settings: ControllerSettings
    ) -> None:
        self._cluster: Final = cluster
        self._partitions: Final = partitions
        self._group_limits: Final = group_limits(settings)

    def decide(
        self, request: ClusterChange | AllocateProducerIds, base_offset: Offset
    ) -> Decision[object]:
        """Decide a request. `base_offset`: the offset of its first record, if it has records."""
        if isinstance(request, AllocateProducerIds):
            return decide_producer_ids(self._cluster, request)
        records, results, remark = self._decided(request)
        end_offset = Offset(base_offset + len(records)) if records else Offset(-1)
        response = Outcomes(results=results, end_offset=end_offset)
        return Decision(response=response, records=records, remark=remark)

    def _decided(self, request: ClusterChange) -> tuple[*Decided, str | None]:
        match request:
            case UnregisterBroker():
                return *decide_unregistration(self._cluster, self._partitions, request), None
            case UpdateFeatures():
                return *decide_feature_levels(self._cluster, request), None
            case AlterGroupConfigs() | AlterClientMetrics():
                return self._decided_about_resources(request)
            case _:
                return self._decided_about_access(request)

    def _decided_about_resources(self, request: ResourceChange) -> tuple[*Decided, str | None]:
        are_groups = isinstance(request, AlterGroupConfigs)
        needed = LEVEL_OF_GROUP_CONFIGS if are_groups else LEVEL_OF_CLIENT_METRICS
        level, refusal = level_for(self._cluster, needed)
        if refusal is not None:
            return (), (refusal,) * parts_of(request), None
        if isinstance(request, AlterGroupConfigs):
            records, results = decide_group_configs(self._cluster, request, self._group_limits)
        else:
            records, results = decide_client_metrics(self._cluster, request)
        first = () if level is None or not records else (level,)
        return (*first, *records), results, None

    def _decided_about_access(self, request: AccessChange) -> tuple[*Decided, str | None]:
        level, refusal = level_for(self._cluster, LEVEL_OF_ACCESS)
        if refusal is not None:
            return (), (refusal,) * parts_of(request), None
        records: tuple[MetadataRecord, ...]
        access = self._cluster.access
        match request:
            case CreateAcls():
                records, results = decide_acl_creation(access, request)
            case DeleteAcls():
                records, results = decide_acl_deletion(access, request)
            case AlterClientQuotas():
                records, results = decide_quotas(access, request)
            case AlterScramCredentials():
                records, results = decide_credentials(access, request)
            case _:
                assert_never(request)
        if not records:
            return (), results, None
        first = () if level is None else (level,)
        return (*first, *records), results, None
