"""Every workload, by name; a new one is a file beside this one and an entry in the list."""

from collections.abc import Mapping
from typing import Any, Final

from quorumlog.chaos.registered import registered
from quorumlog.chaos.workloads import (
    append_read,
    compacted_register,
    consume_transform_produce,
    group_consume,
    idempotent_send,
    list_offsets,
    metadata_linearizable,
    recreated_topic,
    txn_append,
    txn_transfer,
)
from quorumlog.chaos.workloads.workload import Workload

WORKLOADS: Final[Mapping[str, Workload[Any]]] = {
    workload.name: workload
    for workload in (
        append_read.WORKLOAD,
        idempotent_send.WORKLOAD,
        group_consume.WORKLOAD,
        group_consume.CONSUMER_WORKLOAD,
        compacted_register.WORKLOAD,
        list_offsets.WORKLOAD,
        metadata_linearizable.WORKLOAD,
        recreated_topic.WORKLOAD,
        txn_append.WORKLOAD,
        txn_transfer.WORKLOAD,
        consume_transform_produce.WORKLOAD,
    )
}


def find_workload(name: str) -> Workload[Any]:
    """Return the workload of this name. Raises ValueError with the existing names."""
    return registered(WORKLOADS, name, "workload")
