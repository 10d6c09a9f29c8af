"""LogAppendTime with real logs: what a producer is told, and what lookups and followers see."""

from pathlib import Path

from quorumlog.clock import wall_clock_ms
from quorumlog.wire.codec.records import decode_batch
from tests.support.broker.one_broker import AT, append, fetch_of, one_broker, publish, sequenced
from tests.support.broker.replica_calls import fetch_from
from tests.support.broker.replicas import image

ALONE = image(1, 0, 0, (1,), replicas=(1,))


async def test_the_leader_stamps_and_tells_the_time_of_the_append(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        assert append(replicas).log_append_time_ms == -1
        publish(replicas, ALONE, message_timestamp_type="LogAppendTime")
        before_ms = wall_clock_ms()
        time_ms = append(replicas).log_append_time_ms
        assert before_ms <= time_ms <= wall_clock_ms()
        found = await replicas.list_offset(AT, time_ms)
        assert (found.offset, found.timestamp_ms) == (1, time_ms)
        answers = fetch_from(replicas, fetch_of(1))
        assert isinstance(answers, list)
        records = b"".join(answers[0].records)
        assert [record.timestamp_ms for record in decode_batch(records)] == [time_ms]
        first, again = (append(replicas, records=sequenced(0)) for _ in range(2))
        assert first.log_append_time_ms > 0
        assert (again.base_offset, again.log_append_time_ms) == (2, -1)
        await replicas.ticks.retention.check_all()
        assert replicas.drivers[AT].log.log_start_offset == 1  # the first was not stamped
