"""Each replica waits for something that will come: a fetch, a deadline, a request or disk work."""

from pathlib import Path

from tests.support.broker.one_broker import publish
from tests.support.broker.replicas import image
from tests.unit.broker.test_cutting_a_log import begin_cut, follower


async def test_a_leader_elected_during_a_truncation_is_fetched_from(tmp_path: Path) -> None:
    async with follower(tmp_path) as (replicas, queue):
        begin_cut(replicas, queue)
        publish(replicas, image(3, 2, 2, (1, 2, 3)))
        replicas.check_progress()
        queue.release()
        replicas.check_progress()
