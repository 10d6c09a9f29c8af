"""Settings of topics, brokers, groups, subscriptions: described, altered one by one (KIP-339)."""

from collections.abc import Iterable, Mapping
from typing import Final

from quorumlog.client import descriptions as about
from quorumlog.client.admin.asker import Asker, left_out
from quorumlog.client.checks import checked_mapping, checked_names
from quorumlog.client.descriptions import ConfigText, ResourceKind
from quorumlog.client.io.cluster import check, labelled
from quorumlog.wire.codec.messages import describe_configs as describe_configs_
from quorumlog.wire.codec.messages import incremental_alter_configs as alter_configs_
from quorumlog.wire.codec.messages.list_config_resources import ListConfigResourcesRequest

RESOURCES: Final[Mapping[ResourceKind, int]] = {
    "topic": 2, "broker": 4, "client_metrics": 16, "group": 32,
}  # fmt: skip
KINDS: Final[Mapping[int, str]] = {
    2: "topic", 4: "broker", 8: "broker_logger", 16: "client_metrics", 32: "group",
}  # fmt: skip
_UNNAMED: Final = {
    "topic": "no topic", "broker": "all brokers", "client_metrics": "no subscription",
    "group": "no group",
}  # fmt: skip
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)


def as_text(name: str, value: object) -> str:
    """Return a setting's value as Kafka's text. Raises TypeError for values of other types."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise TypeError(f"setting {name!r} must be a str, int, float or bool, not {value!r}")


async def describe(asker: Asker, kind: ResourceKind, name: str) -> dict[str, about.ConfigValue]:
    """See Admin.describe_configs."""
    resource = describe_configs_.DescribeConfigsResource(
        resource_type=_type(kind), resource_name=_name(name), configuration_keys=None
    )
    request = describe_configs_.DescribeConfigsRequest(resources=[resource])
    broker_id = _broker_id(kind, name)

    async def attempt() -> dict[str, about.ConfigValue]:
        found = {}
        for result in (await asker.request(request, broker_id=broker_id)).results:
            check(result.error_code, labelled(name, result.error_message))
            for one in result.configs:
                found[one.name] = about.ConfigValue(
                    value=one.value,
                    source=one.config_source,
                    is_read_only=one.read_only,
                    is_sensitive=one.is_sensitive,
                )
        return found

    return await asker.retry(attempt, changes=False)


async def alter(
    asker: Asker,
    kind: ResourceKind,
    name: str,
    *,
    values: Mapping[str, ConfigText],
    delete: Iterable[str],
    append: Mapping[str, ConfigText],
    subtract: Mapping[str, ConfigText],
    validate_only: bool,
) -> None:
    """See Admin.alter_configs."""
    changes = [
        alter_configs_.AlterableConfig(
            name=setting, config_operation=operation, value=as_text(setting, value)
        )
        for operation, settings in ((_SET, values), (_APPEND, append), (_SUBTRACT, subtract))
        for setting, value in checked_mapping(settings, "settings to values").items()
    ]
    changes += [
        alter_configs_.AlterableConfig(name=setting, config_operation=_DELETE, value=None)
        for setting in checked_names(delete)
    ]
    if not changes:
        raise ValueError("no setting is given: values, delete, append or subtract")
    resource = alter_configs_.AlterConfigsResource(
        resource_type=_type(kind), resource_name=_name(name), configs=changes
    )
    request = alter_configs_.IncrementalAlterConfigsRequest(
        resources=[resource], validate_only=validate_only
    )

    async def attempt() -> None:
        responses = (await asker.request(request, broker_id=_broker_id(kind, name))).responses
        if not responses:
            raise left_out(name)
        for one in responses:
            check(one.error_code, labelled(name or _UNNAMED[kind], one.error_message))

    await asker.retry(attempt, changes=True)


async def list_resources(asker: Asker, kinds: Iterable[str] | None) -> list[about.ConfigResource]:
    """See Admin.list_config_resources."""
    numbers = {kind: number for number, kind in KINDS.items()}
    wanted = [] if kinds is None else checked_names(kinds, "kinds")
    for kind in wanted:
        if kind not in numbers:
            raise ValueError(f"{kind!r} must be one of {', '.join(map(repr, numbers))}")
    request = ListConfigResourcesRequest(resource_types=[numbers[kind] for kind in wanted])
    response = await asker.ask(request, changes=False)
    return sorted(
        about.ConfigResource(
            KINDS.get(one.resource_type, str(one.resource_type)), one.resource_name
        )
        for one in response.config_resources
    )


def _type(kind: ResourceKind) -> int:
    if kind not in RESOURCES:
        raise ValueError(f"a resource is one of {', '.join(map(repr, RESOURCES))}, not {kind!r}")
    return RESOURCES[kind]


def _name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a resource is named by a str, not {name!r}")
    return name


def _broker_id(kind: ResourceKind, name: str) -> int | None:
    """Return the broker that must get the request; None: any broker.

    Each broker handles its own settings. The name "" stands for the defaults of all brokers.
    """
    if kind != "broker" or not name:
        return None
    if not name.isdecimal():
        raise ValueError(f"a broker is named by its id, not {name!r}")
    return int(name)
