"""The coordinators of a broker: of groups, and of transactions."""

from functools import partial
from typing import Final

from quorumlog.broker.controller_requests.producer_ids import ProducerIds
from quorumlog.broker.groups.io.group_service import GroupService
from quorumlog.broker.replicas import Replicas
from quorumlog.broker.server.api import BrokerContext
from quorumlog.broker.server.own_connection import OwnConnection
from quorumlog.broker.transactions.io.broker_channels import kafka_peers
from quorumlog.broker.transactions.io.transaction_service import TransactionService
from quorumlog.clock import wall_clock_ms
from quorumlog.node.config import NodeConfig
from quorumlog.node.dependencies import NodeDependencies
from quorumlog.tasks import OnError


class Coordinators:
    """Both coordinators; the replicas notify them of the partitions that this broker leads."""

    def __init__(
        self,
        config: NodeConfig,
        replicas: Replicas,
        producer_ids: ProducerIds,
        dependencies: NodeDependencies,
        on_fatal: OnError,
    ) -> None:
        self.transactions: Final = TransactionService(
            broker_id=replicas.broker_id,
            replicas=replicas,
            next_producer_id=producer_ids.next,
            peers=kafka_peers(replicas.broker_id, config.broker, config.peer_kafka, on_fatal),
            settings=config.broker,
            wall_ms=wall_clock_ms,
            on_fatal=on_fatal,
            rules=dependencies.transaction_rules,
        )
        self.groups: Final = GroupService(
            replicas=replicas,
            settings=config.broker,
            verifier=self.transactions.verifier,
            on_fatal=on_fatal,
            rules=dependencies.group_rules,
        )
        replicas.add_leadership_listener(self.groups)
        replicas.add_leadership_listener(self.transactions)

    def reach_own_broker(self, context: BrokerContext) -> None:
        """Let transaction coordinators call their own broker without a socket, from now on."""
        self.transactions.reach_itself_by(partial(OwnConnection.open, context))
