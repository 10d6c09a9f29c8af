"""The operations that a client may perform, as a bit field: all, because there is no authorizer.

Bit n is Kafka's operation code n. Source: KIP-430; each resource type has the operations of Kafka's
`AclEntry.supportedOperations`.
"""

from typing import Final

from quorumlog.metadata_quorum.image.acls import AclOperation


def _bits(*operations: AclOperation) -> int:
    return sum(1 << operation for operation in operations)


_CONFIGS: Final = (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)

ALL_OF_TOPIC: Final = _bits(
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    *_CONFIGS,
)
ALL_OF_GROUP: Final = _bits(
    AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE, *_CONFIGS
)
ALL_OF_CLUSTER: Final = _bits(
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.IDEMPOTENT_WRITE,
    *_CONFIGS,
)
