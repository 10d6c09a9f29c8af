"""Administrators' changes of the cluster's metadata besides topics, and their outcomes.

They are frozen values, because they travel as CBOR.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, TypeVar, assert_never

from quorumlog.metadata_quorum.image.acls import AclFilter
from quorumlog.metadata_quorum.image.records import AclBinding, QuotaEntity
from quorumlog.metadata_quorum.image.scram import ScramCredential
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Offset

ResponseT_co = TypeVar("ResponseT_co", covariant=True)


class RequestFor(Generic[ResponseT_co]):
    """A request to the active controller, whose response is a `ResponseT_co`."""

    __slots__ = ()


class ConfigOperation(IntEnum):
    """An operation on a setting, with its number in the protocol (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """A change of one setting.

    `value`: None only for DELETE; items separated by commas for APPEND and SUBTRACT.
    """

    name: str
    value: str | None = None
    operation: ConfigOperation = ConfigOperation.SET


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChanges:
    """Changes of one topic, group or subscription.

    `replaces_all`: settings not named here return to defaults.
    `is_broker`: `name` is the id of a broker, or "" for all brokers.
    """

    name: str
    changes: tuple[ConfigChange, ...]
    replaces_all: bool = False
    is_broker: bool = False

    @property
    def given_names(self) -> list[str]:
        """The settings that get a value: all changes except deletions."""
        return [one.name for one in self.changes if one.operation is not ConfigOperation.DELETE]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigResult:
    """The result for one topic or broker; with NONE, `configs` is its configuration from now on.

    An image up to `end_offset` (exclusive) contains the change; -1: no change.
    """

    name: str
    error_code: ErrorCode
    error_message: str | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    is_broker: bool = False
    end_offset: Offset = Offset(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBroker(RequestFor["Outcomes"]):
    """Forget a broker that is out of service and will not come back (KIP-500)."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAcls(RequestFor["Outcomes"]):
    """Create each ACL on its own; an ACL that exists stays."""

    acls: tuple[AclBinding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAcls(RequestFor["Outcomes"]):
    """Delete all ACLs that match one of these filters."""

    filters: tuple[AclFilter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaAlteration:
    """New quotas of one entity (its pairs in any order); a value of None removes a key."""

    entity: QuotaEntity
    values: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClientQuotas(RequestFor["Outcomes"]):
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
class AlterScramCredentials(RequestFor["Outcomes"]):
    """Alter the credentials of each user on its own (KIP-554)."""

    alterations: tuple[ScramAlteration, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterGroupConfigs(RequestFor["Outcomes"]):
    """Alter the settings of each group on its own."""

    groups: tuple[ConfigChanges, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClientMetrics(RequestFor["Outcomes"]):
    """Alter each subscription to metrics of clients on its own (KIP-714)."""

    subscriptions: tuple[ConfigChanges, ...]
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
class UpdateFeatures(RequestFor["Outcomes"]):
    """Change all of these levels or none; one outcome for all (KIP-584)."""

    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


AccessChange = CreateAcls | DeleteAcls | AlterClientQuotas | AlterScramCredentials
ResourceChange = AlterGroupConfigs | AlterClientMetrics
ClusterChange = UnregisterBroker | UpdateFeatures | ResourceChange | AccessChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one part of a change. `acls`: the deleted ACLs, sorted."""

    error_code: ErrorCode
    error_message: str | None = None
    acls: tuple[AclBinding, ...] = ()


DONE = Outcome(error_code=ErrorCode.NONE)


def refused(error_code: ErrorCode, message: str) -> Outcome:
    """Return the outcome of a part that is refused."""
    return Outcome(error_code=error_code, error_message=message)


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
        case AlterClientMetrics(subscriptions=subscriptions):
            return len(subscriptions)
        case _:
            assert_never(change)
