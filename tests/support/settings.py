"""Settings as a node has them, for tests that build a part of a node by hand."""

from typing import Any

from quorumlog.settings.servers import StaticConfig, table_of, texts_of


def static_config(*settings: Any) -> StaticConfig:
    """Return the configuration of a node whose parts read these settings."""
    table = table_of(*map(type, settings))
    given = {
        name: text for name, text in texts_of(*settings).items() if text != table[name].default
    }
    return StaticConfig(table, given)
