"""Applies configuration records of resources that need no other record: brokers and groups."""

from collections.abc import Mapping
from typing import Final

from quorumlog.metadata_quorum.image.records import Config


class ConfigReplay:
    """The configurations of one kind of resource, by name; only resources with entries."""

    def __init__(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        self.values: Final = dict(configs)
        self._frozen = configs
        self._changed: Final[set[str]] = set()

    def apply(self, record: Config) -> None:
        """Set or delete one entry."""
        configs = dict(self.values.get(record.resource_name, {}))
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value
        self.values[record.resource_name] = configs
        if not configs:
            del self.values[record.resource_name]
        self._changed.add(record.resource_name)

    def freeze(self) -> tuple[frozenset[str], Mapping[str, Mapping[str, str]]]:
        """Return the names changed since the last call, and the current configurations."""
        changed = frozenset(self._changed)
        if changed:
            self._frozen = dict(self.values)
            self._changed.clear()
        return changed, self._frozen
