"""What a clean shutdown leaves behind for the next registration (KIP-966)."""

from pathlib import Path

from quorumlog.broker.replicas import Replicas
from tests.support.broker.one_broker import run


def test_a_process_that_never_registered_leaves_the_mark_as_it_was(tmp_path: Path) -> None:
    seen: list[int | None] = []

    async def registers(replicas: Replicas) -> None:
        seen.append(replicas.clean_shutdown_epoch)
        replicas.registered(5)

    async def does_not(replicas: Replicas) -> None:
        seen.append(replicas.clean_shutdown_epoch)

    for story in (registers, does_not, does_not):
        run(tmp_path, story)
    assert seen == [None, 5, 5]
