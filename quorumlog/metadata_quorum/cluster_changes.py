"""Administrators' changes of the cluster's metadata besides topics, and their outcomes.

They are frozen values, because they travel as CBOR.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import assert_never

from quorumlog.metadata_quorum.config_changes import ConfigChanges
from quorumlog.metadata_quorum.image.acls import AclFilter
from quorumlog.metadata_quorum.image.records import AclBinding, QuotaEntity
from quorumlog.metadata_quorum.image.scram import ScramCredential
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBroker:
    """Forget a broker that is out of service and will not come back (KIP-500)."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAcls:
    """Create each ACL on its own; an ACL that exists stays."""

    acls: tuple[AclBinding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAcls:
    """Delete all ACLs that match one of these filters."""

    filters: tuple[AclFilter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaAlteration:
    """New quotas of one entity (its pairs in any order); a value of None removes a key."""

    entity: QuotaEntity
    values: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClientQuotas:
    """Alter the quotas of each entity on its own (KIP-546)."""

    alterations: tuple[QuotaAlteration, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramAlteration:
    """Set a user's credential for a mechanism; None deletes it."""

    user: str
    mechanism: int
    credential: ScramCredential | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterScramCredentials:
    """Alter the credentials of each user on its own (KIP-554)."""

    alterations: tuple[ScramAlteration, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterGroupConfigs:
    """Alter the settings of each group on its own."""

    groups: tuple[ConfigChanges, ...]
    validate_only: bool = False


class UpgradeType(IntEnum):
    """The direction in which a feature level may change: Kafka's codes."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureUpdate:
    """The requested level of a feature."""

    name: str
    level: int
    upgrade_type: int = UpgradeType.UPGRADE


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeatures:
    """Change all of these levels or none; one outcome for all (KIP-584)."""

    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


AccessChange = CreateAcls | DeleteAcls | AlterClientQuotas | AlterScramCredentials
ClusterChange = UnregisterBroker | UpdateFeatures | AlterGroupConfigs | AccessChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one part of a change. `acls`: the deleted ACLs, sorted."""

    error_code: ErrorCode
    error_message: str | None = None
    acls: tuple[AclBinding, ...] = ()


DONE = Outcome(error_code=ErrorCode.NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """An outcome per part of a change, in its order.

    An image up to `end_offset` (exclusive) contains the change; -1: no change.
    """

    results: tuple[Outcome, ...]
    end_offset: Offset = Offset(-1)


def parts_of(change: ClusterChange) -> int:
    """Return the number of outcomes of a change."""
    match change:
        case UnregisterBroker() | UpdateFeatures():
            return 1
        case CreateAcls(acls=acls):
            return len(acls)
        case DeleteAcls(filters=filters):
            return len(filters)
        case AlterClientQuotas() | AlterScramCredentials():
            return len(change.alterations)
        case AlterGroupConfigs(groups=groups):
            return len(groups)
        case _:
            assert_never(change)
