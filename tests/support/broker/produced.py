"""The headers of batches, as idempotent producers send them."""

from quorumlog.wire.codec.records import CONTROL_BIT, MAGIC, TRANSACTIONAL_BIT, BatchHeader


def produced(
    base_sequence: int,
    producer_epoch: int = 0,
    producer_id: int = 7,
    last_offset_delta: int = 0,
    *,
    is_control: bool = False,
    is_transactional: bool = False,
) -> BatchHeader:
    return BatchHeader(
        base_offset=0,
        batch_length=0,
        leader_epoch=0,
        magic=MAGIC,
        crc=0,
        attributes=CONTROL_BIT * is_control | TRANSACTIONAL_BIT * is_transactional,
        last_offset_delta=last_offset_delta,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=last_offset_delta + 1,
    )
