"""Decision 0013: what the metadata log says of our former process must not reach the broker."""

from quorumlog.metadata_quorum.image import BrokerImage, ClusterDelta, ClusterImage
from quorumlog.node.boot_gate import BootGate
from quorumlog.wire.codec.identifiers import BrokerId

OURS, NOBODY = BrokerId(1), ClusterDelta()


class Listener:
    def __init__(self) -> None:
        self.seen: list[tuple[ClusterDelta, ClusterImage]] = []

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        self.seen.append((delta, image))


def image_of(broker_epoch: int) -> ClusterImage:
    broker = BrokerImage(
        broker_id=OURS,
        broker_epoch=broker_epoch,
        incarnation_id="x",
        host="localhost",
        port=9092,
        control_address="localhost:19092",
    )
    return ClusterImage(brokers={OURS: broker})


def test_the_former_process_is_never_shown_and_ours_is_shown_whole() -> None:
    listener = Listener()
    gate = BootGate(OURS, [listener])
    gate.publish(NOBODY, image_of(broker_epoch=5))  # replayed: the process that crashed
    gate.registered(9)
    assert listener.seen == []
    assert not gate.opened.is_set()
    gate.publish(NOBODY, image_of(broker_epoch=9))
    assert gate.opened.is_set()
    ((delta, image),) = listener.seen
    assert delta.brokers == {OURS}  # everything, not what changed last
    assert image.brokers[OURS].broker_epoch == 9
    gate.publish(NOBODY, image_of(broker_epoch=9))
    assert listener.seen[1][0] is NOBODY  # from now on, each change as it is


def test_an_image_that_is_faster_than_the_answer_is_kept_for_it() -> None:
    listener = Listener()
    gate = BootGate(OURS, [listener])
    gate.publish(NOBODY, image_of(broker_epoch=9))
    assert listener.seen == []
    gate.registered(9)
    assert [image.brokers[OURS].broker_epoch for _, image in listener.seen] == [9]
