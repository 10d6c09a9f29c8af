"""Quotas of clients: described and altered. Source: KIP-546."""

from collections.abc import Iterable, Mapping
from typing import Final

from quorumlog.client import descriptions as about
from quorumlog.client.admin.asker import Asker, left_out
from quorumlog.client.checks import checked_mapping, checked_names
from quorumlog.client.io.cluster import check, labelled
from quorumlog.wire.codec.messages import alter_client_quotas as alter_
from quorumlog.wire.codec.messages import describe_client_quotas as describe_

_EXACT, _DEFAULT, _SPECIFIED = range(3)
_NO_VALUE: Final = 0.0


async def describe(
    asker: Asker, entity: Mapping[str, str | None], any_of: Iterable[str], *, strict: bool
) -> list[about.ClientQuota]:
    """See Admin.describe_client_quotas."""
    components = [
        describe_.ComponentData(
            entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name
        )
        for kind, name in _checked_entity(entity).items()
    ] + [
        describe_.ComponentData(entity_type=kind, match_type=_SPECIFIED, match=None)
        for kind in checked_names(any_of, "entity types")
    ]
    request = describe_.DescribeClientQuotasRequest(components=components, strict=strict)
    found = [
        about.ClientQuota(
            entity={
                one.entity_type: one.entity_name
                for one in sorted(entry.entity, key=lambda e: e.entity_type)
            },
            values={one.key: one.value for one in sorted(entry.values, key=lambda v: v.key)},
        )
        for entry in (await asker.ask(request, changes=False)).entries or ()
    ]
    return sorted(found, key=lambda quota: [(k, v or "") for k, v in quota.entity.items()])


async def alter(
    asker: Asker,
    entity: Mapping[str, str | None],
    values: Mapping[str, float],
    delete: Iterable[str],
    *,
    validate_only: bool,
) -> None:
    """See Admin.alter_client_quotas."""
    named, numbers = _checked_entity(entity), checked_mapping(values, "quotas to numbers")
    ops = [alter_.OpData(key=key, value=_number(key, one)) for key, one in numbers.items()]
    ops += [
        alter_.OpData(key=key, value=_NO_VALUE, remove=True)
        for key in checked_names(delete, "quotas")
    ]
    if not named or not ops:
        raise ValueError("pass an entity, and values or delete")
    parts = [
        alter_.RequestEntityData(entity_type=kind, entity_name=name) for kind, name in named.items()
    ]
    request = alter_.AlterClientQuotasRequest(
        entries=[alter_.RequestEntryData(entity=parts, ops=ops)], validate_only=validate_only
    )
    name = ", ".join(f"{kind} {name or '(default)'}" for kind, name in named.items())

    async def attempt() -> None:
        entries = (await asker.request(request)).entries
        if not entries:
            raise left_out(name)
        for one in entries:
            check(one.error_code, labelled(name, one.error_message))

    await asker.retry(attempt, changes=True)


def _checked_entity(entity: Mapping[str, str | None]) -> dict[str, str | None]:
    if not isinstance(entity, Mapping):
        raise TypeError(f"an entity is a dict of names by type, not {entity!r}")
    for kind, name in entity.items():
        if not isinstance(kind, str) or not (name is None or isinstance(name, str)):
            raise TypeError(f"an entity is a dict of names (None: the default), not {entity!r}")
    return dict(entity)


def _number(key: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"quota {key!r} must be a number, not {value!r}")
    return float(value)
