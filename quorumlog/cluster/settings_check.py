"""Checks the settings of a cluster before any file is written or node started.

The check is the node's own: a cluster that passes starts with these settings, and a cluster that
fails leaves no trace.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from quorumlog.addresses import EVERYWHERE, host_and_port
from quorumlog.cluster import node_listeners, security
from quorumlog.cluster.errors import InvalidArgument
from quorumlog.cluster.layout import ClusterSpec, NodeSpec, node_properties
from quorumlog.settings.releases import NEWEST, RELEASES

_IN_ENVIRONMENT: Final = " (in the environment)"
_ADDRESSES: Final = "--port gives the first port of the cluster (port= of LocalCluster). "
_BIND: Final = (
    "Give --host and --port, or --listener for another one (host=, port=, listeners= of "
    "LocalCluster). "
)
_ADVERTISED: Final = (
    "Give --advertised HOST[:PORT], or --listener NAME://BIND,advertised=HOST (advertised=, "
    "listeners= of LocalCluster). "
)
_ONE_NODE: Final = "A cluster of one node takes it (--nodes 1). "
_BY_HAND: Final = (
    "Otherwise write a node.properties for each node, and start it by python -m quorumlog.node FILE"
)
_NEW: Final = "A new cluster makes its own."
_BELOW: Final = "The logs of each node are below --dir."
_VOTERS: Final = "The voters are the nodes with the role controller."
OF_EACH_NODE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "node.id": f"The ids count up from --first-id. {_BY_HAND}",
        "cluster.id": f"{_NEW} {_BY_HAND}",
        "process.roles": f"Give --controllers and --brokers. {_BY_HAND}",
        "listeners": f"{_BIND}{_ONE_NODE}{_BY_HAND}",
        "advertised.listeners": f"{_ADVERTISED}{_ONE_NODE}{_BY_HAND}",
        "control.listener": f"{_ADDRESSES}{_BY_HAND}",
        "clock.advances": f"LocalCluster.advance() moves the clock while nodes run. {_BY_HAND}",
        "controller.quorum.voters": f"{_VOTERS} {_BY_HAND}",
        "control.shared.secret.file": f"{_NEW} {_BY_HAND}",
        **dict.fromkeys(
            ("control.tls.ca.file", "control.tls.certificate.file", "control.tls.key.file"),
            f"--tls makes certificates (tls= of LocalCluster). {_BY_HAND}",
        ),
        "log.dirs": f"{_BELOW} {_BY_HAND}",
        "metadata.log.dir": f"{_BELOW} {_BY_HAND}",
        "peer.control.addresses": _BY_HAND,
        "peer.kafka.addresses": _BY_HAND,
    }
)
"""The settings that cannot be the same on all nodes -> the alternative.

`broker.rack` is not among them: all nodes of this machine may be in the same rack; `--racks`
gives them several.
"""
_ADDRESS_SETTINGS: Final = ("listeners", "advertised.listeners")
_OF_ONE_NODE: Final = frozenset(
    {"listeners", "advertised.listeners", "peer.control.addresses", "peer.kafka.addresses"}
)


def release(as_version: str | None) -> dict[str, str]:
    """Return the setting for a release of Apache Kafka; {} for None.

    Raises InvalidArgument with the list of releases.
    """
    if as_version is None:
        return {}
    if as_version not in {*RELEASES, NEWEST}:
        minor = ".".join(as_version.split(".")[:2])
        hint = f"did you mean {minor}? " if minor in RELEASES else ""
        raise InvalidArgument(
            f"--as-version {as_version}: {hint}there are {', '.join(RELEASES)}, and {NEWEST}"
        )
    return {"as.version": as_version}


def laid_over(recorded: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return `recorded` overridden by `given`; an empty value removes a setting.

    Raises InvalidArgument for a value with a line break, and for the removal of a setting that is
    neither recorded nor valid.
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


def require_kept(
    found: ClusterSpec,
    config: Mapping[str, str],
    advertised: str | None,
    listeners: Sequence[str],
    racks: Sequence[str],
) -> None:
    """Refuse changes of settings, listeners and racks that the cluster keeps.

    Raises InvalidArgument.
    """
    _require_min_isr_kept(found.config, config)
    _require_listeners_kept(found.nodes[0], advertised, listeners)
    _require_racks_kept(found, racks)


def _require_racks_kept(found: ClusterSpec, racks: Sequence[str]) -> None:
    """Refuse other racks than the recorded ones; () keeps them. Raises InvalidArgument."""
    brokers = (node for node in found.nodes if node.is_broker)
    here = [*dict.fromkeys(node.rack for node in brokers if node.rack is not None)]
    if racks and [*racks] != here:
        kept = f"the racks {','.join(here)}" if here else "no racks"
        raise InvalidArgument(
            f"--racks {','.join(racks)}: the cluster in this directory has {kept}; "
            "leave --racks out, or choose another --dir"
        )


def _require_min_isr_kept(recorded: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Refuse to change min.insync.replicas in the files of a cluster: its metadata has the value.

    Raises InvalidArgument with the command that changes the metadata.
    """
    name = "min.insync.replicas"
    value = given.get(name, recorded.get(name, ""))
    if value != recorded.get(name, ""):
        raise InvalidArgument(
            f"setting {name}: a cluster that exists has it in its metadata, and ignores a new one "
            f"in the files of its nodes. Start the cluster without it, then: "
            f"quorumlog configs alter broker '' --set {name}={value or 1}"
        )


def _require_listeners_kept(
    node: NodeSpec, advertised: str | None, listeners: Sequence[str]
) -> None:
    """Refuse other listeners than the recorded ones of an existing cluster's first node.

    Options that are not given keep them. Raises InvalidArgument.
    """
    keep = "leave it out, or choose another --dir"
    if advertised is not None:
        [wanted] = node_listeners.advertised_addresses(advertised, [node.kafka])
        if wanted != (node.advertised or node.kafka):
            here = node.advertised or node.kafka
            raise InvalidArgument(
                f"--advertised {advertised}: the cluster in this directory advertises {here}; "
                f"{keep}"
            )
    if listeners and (why := node_listeners.why_not_kept(node.listeners, listeners)):
        raise InvalidArgument(
            f"--listener {' '.join(listeners)}: not the listeners of the cluster in this "
            f"directory: {why}; {keep}"
        )


def _require_common(given: Mapping[str, str], *, is_alone: bool) -> None:
    """Refuse a setting that is specific to each node. `given`: name -> its source.

    Raises InvalidArgument with the alternative.
    """
    for name in sorted(given.keys() & OF_EACH_NODE.keys()):
        if is_alone and name in _OF_ONE_NODE:
            continue
        raise InvalidArgument(
            f"setting {name}{given[name]}: each node has its own; it cannot be set for all of "
            f"them. {OF_EACH_NODE[name]}"
        )


def _require_known(name: str) -> None:
    from quorumlog.node import config

    try:
        config.check_names({name: ""})
    except config.ConfigError as error:
        raise InvalidArgument(str(error)) from error


def _require_one_directory(directory: Path) -> None:
    """Raise InvalidArgument for a path that would be several in `log.dirs`, or several lines."""
    path = str(directory.resolve())
    if "," in path or not path.isprintable():
        raise InvalidArgument(
            f"the directory {path!r} has a comma or a control character in its path, which separate"
            " the directories of log.dirs; choose another one"
        )


def check(directory: Path, spec: ClusterSpec) -> list[str]:
    """Check every node's settings; return the names without effect here, sorted.

    Raises InvalidArgument, with the setting's name. The environment counts, as it does for a node.
    """
    _require_one_directory(directory)
    from quorumlog.node import config  # slow: it loads the settings classes of all parts of a node

    environment = config.from_environment(os.environ)
    given = {**dict.fromkeys(environment, _IN_ENVIRONMENT), **dict.fromkeys(spec.config, "")}
    _require_common(given, is_alone=len(spec.nodes) == 1)
    if "broker.rack" in given and any(node.rack is not None for node in spec.nodes):
        raise InvalidArgument(
            f"setting broker.rack{given['broker.rack']}: the nodes have the racks of --racks; "
            "leave the setting out"
        )
    for node in spec.nodes:
        host, _ = host_and_port(node.kafka)
        if host in EVERYWHERE and not (node.advertised or {*_ADDRESS_SETTINGS} & given.keys()):
            raise InvalidArgument(
                f"--host {host}: clients cannot connect to all interfaces; add --advertised HOST, "
                "the address at which they reach this machine"
            )
    with security.rehearsed(directory, spec) as place:
        for node in spec.nodes:
            own = dict(node_properties(place, spec, node, settings=False))
            try:
                config.build({**own, **spec.config, **environment})
            except config.ConfigError as error:
                raise InvalidArgument(str(error)) from error
    return config.without_effect({**spec.config, **environment})
