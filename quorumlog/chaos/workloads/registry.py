"""Every workload, by name; a new one is a file beside this one and an entry in the list."""

from collections.abc import Mapping
from typing import Any, Final

from quorumlog.chaos.registered import registered
from quorumlog.chaos.workloads import (
    append_read,
    compacted_register,
    consume_transform_produce,
    consumer_group_consume,
    group_consume,
    idempotent_send,
    list_offsets,
    metadata_linearizable,
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
    )
}


def find_workload(name: str) -> Workload[Any]:
    """Return the workload of this name. Raises ValueError with the existing names."""
    return registered(WORKLOADS, name, "workload")
