"""Parts of other packages are found by their names; a wrong one is named, and breaks no other."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from quorumlog.chaos.back_ends.back_end import BackEndFailed, NodeUnavailable
from quorumlog.chaos.faults import registry
from quorumlog.chaos.faults.fault import OUTSIDE, Outside, Scene, StepFault, named
from quorumlog.chaos.nemesis import Nemesis
from quorumlog.chaos.node_simulation.simulate import settings_of
from quorumlog.chaos.registered import AddedParts, registered
from quorumlog.chaos.schedule import Action, Schedule
from tests.support.added_parts import install
from tests.support.testing.fake_back_end import FakeBackEnd

MODULE = """
from quorumlog.chaos.faults.fault import StepFault, named

@named("blackout", "two nodes at once", targets=("any",))
class Blackout(StepFault):
    breaks = "pause"

@named("needy", "its parameter has no default", targets=("any",))
class Needy(StepFault):
    breaks = "pause"
    size: int

NUMBER = 7
"""


def faults() -> AddedParts[type[StepFault]]:
    return AddedParts("fault", registry.FAULTS, registry._kind_of, "quorumlog.faults")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "shop_faults.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("shop_faults", None)


def add(site: Path, name: str = "shop", **entries: str) -> None:
    install(site, name, {"quorumlog.faults": entries})


def test_a_part_is_imported_when_its_name_is_looked_up(site: Path) -> None:
    add(site, blackout="shop_faults:Blackout")
    added = faults()
    assert registered(registry.STEP_FAULTS, "kill", "fault", added).name == "kill"
    with pytest.raises(ValueError, match=r"'blackot' - did you mean blackout\?; .*, blackout$"):
        registered(registry.STEP_FAULTS, "blackot", "fault", added)
    assert "shop_faults" not in sys.modules
    assert registered(registry.STEP_FAULTS, "blackout", "fault", added).text == "two nodes at once"
    [(name, one)] = added.listed().items()
    assert (name, one.origin, one.why_not) == ("blackout", "shop 1.0", "")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("gone", "shop_nothing:X", r"gone of shop 1.0 \(shop_nothing:X\): ModuleNotFoundError"),
        ("gone", "shop_faults:X", "AttributeError"),
        ("number", "shop_faults:NUMBER", "it is no subclass of quorumlog.*StepFault"),
        ("other", "shop_faults:Blackout", r"it is named 'blackout': decorate it with @named"),
        ("needy", "shop_faults:Needy", "its parameter size needs a default"),
    ],
)
def test_a_part_that_cannot_be_used_is_named(site: Path, name: str, value: str, said: str) -> None:
    add(site, **{name: value, "blackout": "shop_faults:Blackout"})
    added = faults()
    with pytest.raises(ValueError, match=said):
        added.find(name)
    listed = added.listed()
    assert listed[name].part is None
    assert listed[name].why_not
    assert listed["blackout"].part is not None


def test_no_package_replaces_a_part(site: Path) -> None:
    add(site, kill="shop_faults:Blackout", blackout="shop_faults:Blackout")
    add(site, "bar", blackout="shop_faults:Blackout")
    added = faults()
    assert added.find("kill") is None
    assert "which quorumlog has itself" in added.listed()["kill"].why_not
    with pytest.raises(ValueError, match=r"bar 1.0 and shop 1.0 add a fault of the same name"):
        added.find("blackout")


class _Database:
    """The state, and the error of the next act."""

    is_up: ClassVar[bool] = True
    error: ClassVar[Exception | None] = None


@named("stop_database", "a database does not answer", targets=("any",))
class StopDatabase(StepFault):
    needs: ClassVar[frozenset[str]] = frozenset({OUTSIDE})

    def inject(self, scene: Scene) -> tuple[Outside]:
        del scene

        async def stop() -> None:
            _Database.is_up = False
            if _Database.error is not None:
                raise _Database.error

        return (Outside(act=stop),)

    def heal(self, scene: Scene) -> tuple[Outside]:
        del scene

        async def start() -> None:
            _Database.is_up = True

        return (Outside(act=start, ends=True),)


class _BackEnd(FakeBackEnd):
    operations = FakeBackEnd.operations | {OUTSIDE}  # as real processes

    def last_words(self, node_id: int) -> str:
        return f"{node_id} ended"


def nemesis_of(rows: list[tuple[str, str, str]], duration_us: int = 1000) -> Nemesis:
    back_end = _BackEnd({})
    action = Action(t_us=0, duration_us=duration_us, fault=StopDatabase(), target="any")
    schedule = Schedule(seed=1, duration_us=duration_us, actions=(action,))
    return Nemesis(back_end, schedule, topic="t", record=lambda *row: rows.append(row))


async def test_a_fault_acts_beside_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[tuple[str, str, str]] = []
    await nemesis_of(rows).run()
    assert rows == [
        ("stop_database", "", "#1 stop_database"),
        ("stop-stop_database", "", "#1 stop_database"),
    ]
    assert _Database.is_up
    monkeypatch.setattr(_Database, "error", NodeUnavailable("it is down already"))
    await nemesis_of(rows).run()
    assert rows[3] == ("skipped", "", "#1 stop_database: it is down already")
    monkeypatch.setattr(_Database, "error", OSError("no such socket"))
    with pytest.raises(ExceptionGroup) as raised:
        await nemesis_of(rows).run()
    assert raised.group_contains(BackEndFailed, match=r"fault stop_database: OSError\(.no such")
    assert not _Database.is_up


async def test_a_healing_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[tuple[str, str, str]] = []
    nemesis = nemesis_of(rows)
    monkeypatch.setattr(_Database, "error", OSError("no such socket"))
    with pytest.raises(ExceptionGroup):
        await nemesis.run()
    await nemesis.heal()
    assert _Database.is_up
    assert [f for f, _, _ in rows] == ["stop_database", "stop-stop_database", "heal"]


def test_simulated_machines_refuse_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.ADDED_FAULTS, "_parts", {"stop_database": StopDatabase})
    monkeypatch.setattr(registry.ADDED_FAULTS, "_found", {"stop_database": []})
    with pytest.raises(registry.FaultUnsupported, match="simulated machines cannot do it"):
        settings_of(1, duration_ms=60_000, workload="append_read", faults=["stop_database"])
