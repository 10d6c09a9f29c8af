"""Orders survive the loss of a node."""

from client import OrderDesk

from quorumlog import LocalCluster
from quorumlog.testing import FreshTopic, History, ManualNemesis


def test_orders_survive_the_loss_of_the_leader(
    quorumlog_cluster: LocalCluster, topic: FreshTopic, nemesis: ManualNemesis
) -> None:
    with OrderDesk(quorumlog_cluster.bootstrap, topic) as desk:
        for order in range(100):
            if order == 50:
                nemesis.kill("partition-leader")
            desk.place(order)
        assert desk.orders(100) == list(range(100))


def test_orders_go_on_while_the_leader_is_cut_off(
    quorumlog_cluster: LocalCluster, topic: FreshTopic, nemesis: ManualNemesis, history: History
) -> None:
    with OrderDesk(quorumlog_cluster.bootstrap, topic) as desk:
        with nemesis.isolated("partition-leader"):
            for order in range(10):
                with history.send(topic, order) as operation:
                    operation.ok(offset=desk.place(order))
        assert desk.orders(10) == list(range(10))
    assert history.verdict.valid


def test_no_order_is_lost_while_a_follower_stands_still(
    quorumlog_cluster: LocalCluster, topic: FreshTopic, nemesis: ManualNemesis, history: History
) -> None:
    with OrderDesk(quorumlog_cluster.bootstrap, topic) as desk, nemesis.paused("isr-follower"):
        for order in range(30):
            with history.send(topic, order) as operation:
                operation.ok(offset=desk.place(order))
    assert history.verdict.valid
