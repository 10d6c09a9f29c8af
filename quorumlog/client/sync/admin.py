"""The administrator without an event loop."""

from typing import Unpack

from quorumlog.client.admin import Admin
from quorumlog.client.admin.transactions import TransactionAdmin
from quorumlog.client.settings import AdminOptions, BootstrapServers, with_servers
from quorumlog.client.sync.blocking_client import Blocking, Part, blocking


class SyncTransactionAdmin(Part[TransactionAdmin]):
    """`Admin.transactions` without an event loop."""

    list = blocking(TransactionAdmin.list)
    describe = blocking(TransactionAdmin.describe)
    abort = blocking(TransactionAdmin.abort)


class SyncAdmin(Blocking[Admin]):
    """Admin without an event loop."""

    @with_servers
    def __init__(
        self, bootstrap_servers: BootstrapServers, **options: Unpack[AdminOptions]
    ) -> None:
        super().__init__(Admin(bootstrap_servers, **options))

    @property
    def transactions(self) -> SyncTransactionAdmin:
        """Lists, describes and aborts transactions: `admin.transactions.list()`."""
        return SyncTransactionAdmin(self._client.transactions, self)

    request = blocking(Admin.request)

    create_topics = blocking(Admin.create_topics)
    delete_topics = blocking(Admin.delete_topics)
    create_partitions = blocking(Admin.create_partitions)
    list_topics = blocking(Admin.list_topics)
    describe_topics = blocking(Admin.describe_topics)
    elect_leaders = blocking(Admin.elect_leaders)

    alter_partition_reassignments = blocking(Admin.alter_partition_reassignments)
    list_partition_reassignments = blocking(Admin.list_partition_reassignments)

    list_offsets = blocking(Admin.list_offsets)
    delete_records = blocking(Admin.delete_records)
    describe_producers = blocking(Admin.describe_producers)

    describe_configs = blocking(Admin.describe_configs)
    alter_configs = blocking(Admin.alter_configs)
    list_config_resources = blocking(Admin.list_config_resources)

    describe_cluster = blocking(Admin.describe_cluster)
    describe_quorum = blocking(Admin.describe_quorum)
    describe_metadata_quorum = blocking(Admin.describe_metadata_quorum)
    add_raft_voter = blocking(Admin.add_raft_voter)
    remove_raft_voter = blocking(Admin.remove_raft_voter)
    unregister_broker = blocking(Admin.unregister_broker)
    describe_log_dirs = blocking(Admin.describe_log_dirs)
    alter_replica_log_dirs = blocking(Admin.alter_replica_log_dirs)

    describe_features = blocking(Admin.describe_features)
    update_features = blocking(Admin.update_features)

    describe_acls = blocking(Admin.describe_acls)
    create_acls = blocking(Admin.create_acls)
    delete_acls = blocking(Admin.delete_acls)
    describe_client_quotas = blocking(Admin.describe_client_quotas)
    alter_client_quotas = blocking(Admin.alter_client_quotas)
    describe_user_scram_credentials = blocking(Admin.describe_user_scram_credentials)
    alter_user_scram_credentials = blocking(Admin.alter_user_scram_credentials)

    list_consumer_groups = blocking(Admin.list_consumer_groups)
    describe_consumer_groups = blocking(Admin.describe_consumer_groups)
    list_consumer_group_offsets = blocking(Admin.list_consumer_group_offsets)
    alter_consumer_group_offsets = blocking(Admin.alter_consumer_group_offsets)
    delete_consumer_group_offsets = blocking(Admin.delete_consumer_group_offsets)
    delete_consumer_groups = blocking(Admin.delete_consumer_groups)
