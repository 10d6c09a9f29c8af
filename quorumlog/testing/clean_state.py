"""A clean state in a shared cluster: without topics, groups and transactions of earlier tests."""

from typing import TYPE_CHECKING, Final

from quorumlog.client import KafkaError
from quorumlog.client.sync import SyncAdmin, SyncProducer
from quorumlog.cluster.waits import TIMEOUT_S, wait_until
from quorumlog.testing.topics import is_of_users
from quorumlog.wire.codec.error_codes import ErrorCode

if TYPE_CHECKING:
    from quorumlog.cluster import LocalCluster

_OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")


class StillUsed(Exception):
    """A group has members: a client of an earlier test is still open."""


def clean(cluster: "LocalCluster") -> None:
    """End open transactions, and delete all groups and topics but Kafka's own.

    Returns when no running broker has the topics. A producer of an open transaction is fenced.
    Raises StillUsed for a group with members, KafkaError, TookTooLong.
    """
    with SyncAdmin(cluster.bootstrap) as admin:
        for transaction in admin.transactions.list(states=_OPEN):
            name = transaction.transactional_id
            with SyncProducer(cluster.bootstrap, transactional_id=name) as producer:
                producer.init_transactions()  # aborts the open transaction
        for group in admin.list_consumer_groups():
            _delete_group(admin, group.group_id)
        if names := [name for name in admin.list_topics() if is_of_users(name)]:
            admin.delete_topics(names)
    left: list[str] = []

    def is_clean() -> bool:
        views = [cluster.node_status(node_id) for node_id in cluster.running()]
        left[:] = [name for view in filter(None, views) for name in view["topics"]]
        left[:] = sorted({*filter(is_of_users, left)})
        return not left

    wait_until(is_clean, lambda: f"a broker still has {', '.join(left)}", TIMEOUT_S)


def _delete_group(admin: SyncAdmin, group_id: str) -> None:
    try:
        admin.delete_consumer_groups([group_id])
    except KafkaError as error:
        if error.code is ErrorCode.NON_EMPTY_GROUP:
            raise StillUsed(
                f"group {group_id} has members: a consumer of an earlier test is open; close each"
                " at the end of its test"
            ) from error
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:  # it was deleted meanwhile
            raise
