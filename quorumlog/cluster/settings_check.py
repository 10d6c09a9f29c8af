"""Checks the settings of a cluster before anything is written or started.

The check is the node's own: a cluster that passes starts with these settings, and one that does not
leaves no trace.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from quorumlog.cluster.errors import InvalidArgument
from quorumlog.cluster.layout import ClusterSpec, node_properties


def laid_over(recorded: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return `recorded` with `given` laid over it; an empty value takes a setting back.

    Raises InvalidArgument for what no properties file can hold, and for a name to take back that is
    neither recorded nor known.
    """
    merged = dict(recorded)
    for name, value in given.items():
        if len(f"{name}={value}".splitlines()) != 1:
            raise InvalidArgument(f"setting {name!r}: a line break cannot be part of it")
        if value:
            merged[name] = value
        elif merged.pop(name, None) is None:
            _require_known(name)
    return merged


def _require_known(name: str) -> None:
    from quorumlog.node import config

    try:
        config.check_names({name: ""})
    except config.ConfigError as error:
        raise InvalidArgument(str(error)) from error


def check(directory: Path, spec: ClusterSpec) -> list[str]:
    """Check every node's settings; return those that have no effect here, sorted.

    Raises InvalidArgument, with the setting's name. The environment counts, as it does for a node.
    """
    from quorumlog.node import config  # it loads the settings classes of every part of a node

    environment = config.from_environment(os.environ)
    for node in spec.nodes:
        own = dict(node_properties(directory, spec, node, settings=False))
        if fixed := sorted(own.keys() & spec.config.keys()):
            raise InvalidArgument(
                f"setting {fixed[0]}: each node has its own; it cannot be set for all of them"
            )
        try:
            config.build({**own, **spec.config, **environment})
        except config.ConfigError as error:
            raise InvalidArgument(str(error)) from error
    return config.without_effect({**spec.config, **environment})
