"""The records of the world's clients: each sets a quota of one of few entities to a new value."""

from collections.abc import Iterable, Mapping
from typing import Final

from quorumlog.chaos.simulation.worlds.entries import Entry
from quorumlog.chaos.simulation.worlds.quorum.voter_model import is_voters
from quorumlog.metadata_quorum.cluster_changes import AlterClientQuotas, QuotaAlteration
from quorumlog.metadata_quorum.image.records import (
    ClientQuota,
    MalformedRecord,
    QuotaEntity,
    decode_record,
    encode_record,
)

ENTITIES: Final = 20  # a snapshot of them needs several responses
KEY: Final = "producer_byte_rate"

Quotas = Mapping[QuotaEntity, Mapping[str, float | None]]


def change_of(numbers: Iterable[int]) -> AlterClientQuotas:
    """Return the request that makes the records of these consecutive numbers."""
    alterations = tuple(
        QuotaAlteration(entity=_entity(number), values={KEY: float(number)}) for number in numbers
    )
    return AlterClientQuotas(alterations=alterations)


def value_of(number: int) -> bytes:
    """Return the record of a number, as it is in the log."""
    return encode_record(ClientQuota(entity=_entity(number), key=KEY, value=float(number)))


def quotas_after(before: Quotas, entries: Iterable[Entry]) -> Quotas:
    """Return the state after more records."""
    after = dict(before)
    for entry in entries:
        record = _record(entry)
        if isinstance(record, ClientQuota):
            after[record.entity] = {record.key: record.value}
    return after


def _record(entry: Entry) -> object:
    try:
        return None if is_voters(entry) else decode_record(entry.content)
    except MalformedRecord:
        return None  # of a control batch


def _entity(number: int) -> QuotaEntity:
    return (("client-id", f"client {number % ENTITIES}"),)
