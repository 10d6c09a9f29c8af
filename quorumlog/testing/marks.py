"""`@pytest.mark.chaos(...)`: its arguments, checked when tests are collected."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import TYPE_CHECKING, Any, Final

import pytest

from quorumlog.testing.options import did_you_mean
from quorumlog.testing.trial import seed_of

if TYPE_CHECKING:
    from pathlib import Path

    from quorumlog.chaos.node_simulation.settings import NodesSettings
    from quorumlog.chaos.run.run_settings import RunSettings
    from quorumlog.chaos.schedule import Option
    from quorumlog.cluster import ClusterShape
    from quorumlog.cluster.security import SecurityOptions

CHAOS: Final = "chaos"
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0}
_DEFAULT_S: Final = 10.0
_PARTITIONS: Final = 4
_ANY: Final = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosMark:
    """The arguments of a test's marks: options of `chaos run` or `simulate nodes`.

    simulated: whole nodes in one process, under virtual time. seed: None: the plugin chooses.
    faults: None: the seed chooses, in simulation only. partitions: 0 is 4, or 2 in simulation.
    """

    workload: str = "append_read"
    faults: tuple[str, ...] | None = ("kill",)
    duration_s: float = _DEFAULT_S
    seed: int | None = None
    driver: str = "client"
    options: Mapping[str, "Option"] = field(default_factory=dict)
    simulated: bool = False
    nodes: int = 3
    controllers: int | None = None  # with `brokers`, instead of `nodes`: one role each
    brokers: int | None = None
    racks: tuple[str, ...] = ()
    partitions: int = 0
    config: Mapping[str, str] = field(default_factory=dict)
    mutant: str | None = None
    security: "SecurityOptions" = field(default_factory=dict, repr=False)  # type: ignore[assignment]  # an empty one

    def shape(self) -> "ClusterShape":
        """Return the number of nodes of each role. Raises ValueError."""
        from quorumlog.cluster import ClusterShape

        return ClusterShape(self.nodes, self.controllers, self.brokers, self.racks)

    def settings(self, out: "Path", seed: int) -> "RunSettings":
        """Return the settings of a run on real processes. Raises ValueError."""
        from quorumlog.chaos.mutants import mutant_module
        from quorumlog.chaos.run.run_settings import RunSettings

        if self.faults is None:
            raise ValueError(f"faults = {_ANY!r}: only with simulated=True does the seed choose")
        return RunSettings(
            out=out,
            workload=self.workload,
            options=self.options,
            faults=self.faults,
            duration_s=self.duration_s,
            seed=seed,
            shape=self.shape(),
            driver=self.driver,
            config=self.config,
            protection=self.security,
            partitions=self.partitions or _PARTITIONS,
            node_module="quorumlog.node" if self.mutant is None else mutant_module(self.mutant),
            command=self.command(seed),
        )

    def simulation(self, keep_in: "Path", seed: int) -> "NodesSettings":
        """Return the settings of a run in simulation. Raises ValueError."""
        from quorumlog.chaos.node_simulation.simulate import settings_of

        if self.driver != "client":
            raise ValueError(f"driver = {self.driver!r}: simulated nodes have quorumlog's own")
        if self.security:
            raise ValueError("security: simulated nodes have plain text, and no users")
        settings = settings_of(
            seed,
            duration_ms=round(self.duration_s * 1000),
            workload=self.workload,
            options=self.options,
            faults=self.faults,
            shape=self.shape(),
            config=self.config,
            mutant=self.mutant,
        )
        partitions = self.partitions or settings.partitions
        return replace(settings, partitions=partitions, keep_in=str(keep_in))

    def command(self, seed: int) -> tuple[str, ...]:
        """Return the command line of the same run without pytest."""
        from quorumlog.cluster.security import shown_config

        return (
            *("quorumlog", "chaos", "run", "--workload", self.workload),
            *("--fault", ",".join(self.faults or ()) or "none"),
            *("--duration", f"{self.duration_s:g}s", "--seed", str(seed)),
            *_given("--driver", self.driver, "client"),
            *self.shape().options(),
            *_given("--partitions", self.partitions, 0),
            *_pairs("--workload-option", self.options),
            *_pairs("--config", shown_config(self.config)),
            *_given("--mutant", self.mutant, None),
            *_protection(self.security),
        )

    def simulation_command(self, seed: int) -> tuple[str, ...]:
        """Return the command line of the same simulated run without pytest."""
        faults = None if self.faults is None else ",".join(self.faults) or "none"
        return (
            *("quorumlog", "simulate", "nodes", "--seed", str(seed)),
            *("--duration", f"{self.duration_s:g}s"),
            *_given("--workload", self.workload, "append_read"),
            *_given("--faults", faults, None),
            *self.shape().options(),
            *_given("--partitions", self.partitions, 0),
            *_pairs("--workload-option", self.options),
            *_pairs("--config", self.config),
            *_given("--mutant", self.mutant, None),
        )


_ARGUMENTS: Final = tuple(
    each.name.removesuffix("_s") if each.name == "duration_s" else each.name
    for each in fields(ChaosMark)
)


def read_mark(item: pytest.Item, *, with_seed: bool = True) -> ChaosMark | None:
    """Return the merged arguments of a test's marks; None without a mark. The nearest mark wins.

    `with_seed`: also check rules that depend on the seed. Raises UsageError with the test and the
    argument.
    """
    marks = list(item.iter_markers(CHAOS))
    if not marks:
        return None
    given: dict[str, Any] = {}
    for mark in reversed(marks):
        if mark.args:
            raise _wrong(item, f"{mark.args[0]!r} has no name: write faults=..., duration=...")
        given |= mark.kwargs
    try:
        mark_of_test = _mark_of(given)
        check_mark(mark_of_test, seed_of(item, mark_of_test.seed) if with_seed else None)
    except ValueError as error:
        raise _wrong(item, str(error)) from error
    return mark_of_test


def _wrong(item: pytest.Item, reason: str) -> pytest.UsageError:
    return pytest.UsageError(f"{item.nodeid}: @pytest.mark.chaos: {reason}")


def _mark_of(given: Mapping[str, Any]) -> ChaosMark:
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _ARGUMENTS:
            there_are = ", ".join(_ARGUMENTS)
            raise ValueError(f"no {name!r}{did_you_mean(name, _ARGUMENTS)}; there are {there_are}")
        if name == "duration":
            values["duration_s"] = duration_s(value)
        elif name == "faults":
            values[name] = _names(value)
        elif name == "racks":
            values[name] = _racks(value)
        else:
            _check_type(name, value)
            values[name] = value
    _check_security(values.get("security", {}))
    return ChaosMark(**values)


def _check_security(options: Mapping[str, Any]) -> None:
    """Raise ValueError for an unknown option of the security of a cluster."""
    from quorumlog.cluster.security import SecurityOptions

    known = tuple(SecurityOptions.__annotations__)
    for name in options:
        if name not in known:
            there_are = ", ".join(known)
            raise ValueError(
                f"security: no {name!r}{did_you_mean(name, known)}; there are {there_are}"
            )


def _check_type(name: str, value: object) -> None:
    match name:
        case "seed" | "nodes" | "controllers" | "brokers" | "partitions":
            is_right = type(value) is int and value >= (0 if name == "seed" else 1)
            noun = "a whole number"
        case "options" | "config" | "security":
            is_right, noun = isinstance(value, Mapping), "a dict"
        case "simulated":
            is_right, noun = isinstance(value, bool), "True or False"
        case _:
            is_right, noun = isinstance(value, str), "a name"
    if not is_right:
        raise ValueError(f"{name} = {value!r}: {noun} is expected")


def _names(value: object) -> tuple[str, ...] | None:
    """Return the names of faults, from one text or a list of texts; None: any."""
    if value == _ANY:
        return None
    if value in ("none", ""):
        return ()
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"faults = {value!r}: names are expected, as ['kill', 'pause']")
    return tuple(name.strip() for name in names)


def _racks(value: object) -> tuple[str, ...]:
    """Return the names of racks, from one text or a list of texts."""
    from quorumlog.cluster.shape import read_racks

    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"racks = {value!r}: names are expected, as ['a', 'b', 'c']")
    return read_racks(names)


def duration_s(value: object) -> float:
    """Read a number of seconds, or text such as `30s`, `500ms`, `2m`. Raises ValueError."""
    number, factor = value, 1.0
    if isinstance(value, str):
        unit = next((unit for unit in _UNITS_S if value.endswith(unit)), "")
        number, factor = value.removesuffix(unit), _UNITS_S.get(unit, 1.0)
    try:
        seconds = float(number) * factor  # type: ignore[arg-type]  # other types raise
    except (TypeError, ValueError):
        seconds = -1.0
    if isinstance(value, bool) or not 0 < seconds < inf:
        raise ValueError(f"duration = {value!r}: write 30, '30s', '500ms' or '2m'")
    return seconds


def check_mark(mark: ChaosMark, seed: int | None) -> None:
    """Raise ValueError for an invalid mark; with a seed, also if the seed does not fit it."""
    from pathlib import Path

    from quorumlog.chaos.drawn_schedule import draw_schedule
    from quorumlog.chaos.drivers.registry import require_driver
    from quorumlog.chaos.run.protection import protection_of

    require_driver(mark.driver)
    if mark.simulated:
        mark.simulation(Path(), seed or 0)
        return
    run = mark.settings(Path(), seed or 0)
    protection_of(mark.workload, mark.security)
    if seed is None:
        return
    schedule = draw_schedule(
        seed, faults=run.faults, duration_ms=round(mark.duration_s * 1000), overlap=run.overlap
    )
    if run.faults and not schedule.actions:
        raise ValueError(
            f"duration = {mark.duration_s:g} s has no room for a fault with seed {seed}"
        )


def _given(option: str, value: object, default: object) -> tuple[str, ...]:
    return () if value == default else (option, str(value))


def _protection(security: "SecurityOptions") -> tuple[str, ...]:
    """Return the options of a new cluster's security. A password is hidden in them.

    The command works as it is: the hidden text is the password of its new cluster.
    """
    from quorumlog.cluster.security import HIDDEN

    supers = security.get("super_users") or ()
    users = security.get("users") or {}
    return (
        *(["--tls"] if security.get("tls") else []),
        *_given("--sasl", security.get("sasl"), None),
        *_each("--user", (f"{one}={HIDDEN}" if word else one for one, word in users.items())),
        *(["--acls"] if security.get("acls") else []),
        *_each("--super-user", [supers] if isinstance(supers, str) else supers),
    )


def _each(option: str, values: Iterable[str]) -> tuple[str, ...]:
    return tuple(part for value in values for part in (option, value))


def _pairs(option: str, values: Mapping[str, object]) -> tuple[str, ...]:
    return _each(option, (f"{name}={value}" for name, value in values.items()))
