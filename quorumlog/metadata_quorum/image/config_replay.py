"""Applies configuration records of one kind of resource that exists by its name alone."""

from collections.abc import Mapping
from typing import Final

from quorumlog.metadata_quorum.image.records import Config


class ConfigReplay:
    """What resources of one kind set, by their names; one that sets nothing is absent."""

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
        """Return what has changed since the last call, and the present state."""
        changed = frozenset(self._changed)
        if changed:
            self._frozen = dict(self.values)
            self._changed.clear()
        return changed, self._frozen
