"""Every workload, by name; a new one is a file beside this one and an entry in the list.

Other packages add workloads by entry points of the group `quorumlog.workloads`.
"""

from collections.abc import Mapping
from typing import Any, Final

from quorumlog.chaos.registered import AddedParts, registered
from quorumlog.chaos.workloads import (
    append_read,
    authorized,
    compacted_register,
    consume_transform_produce,
    consumer_group_consume,
    group_consume,
    idempotent_send,
    list_offsets,
    metadata_linearizable,
    mirror,
    recreated_topic,
    txn_append,
    txn_transfer,
    wire_rules,
)
from quorumlog.chaos.workloads.workload import Workload

WORKLOADS: Final[Mapping[str, Workload[Any]]] = {
    module.WORKLOAD.name: module.WORKLOAD
    for module in (
        append_read,
        idempotent_send,
        group_consume,
        consumer_group_consume,
        compacted_register,
        list_offsets,
        metadata_linearizable,
        recreated_topic,
        txn_append,
        txn_transfer,
        consume_transform_produce,
        wire_rules,
        authorized,
        mirror,
    )
}


def _workload_of(name: str, part: object) -> Workload[Any]:
    if not isinstance(part, Workload):
        raise TypeError("it is no quorumlog.chaos.workloads.workload.Workload")
    if part.name != name:
        raise ValueError(f"it is named {part.name!r}")
    return part


ADDED_WORKLOADS: Final = AddedParts("workload", WORKLOADS, _workload_of, "quorumlog.workloads")
"""The workloads of other packages: each a `Workload`."""


def find_workload(name: str) -> Workload[Any]:
    """Return the workload of this name. Raises ValueError with the existing names."""
    return registered(WORKLOADS, name, "workload", ADDED_WORKLOADS)
