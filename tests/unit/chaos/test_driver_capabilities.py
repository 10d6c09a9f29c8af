"""A workload that needs what a driver cannot do is refused before anything starts."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from quorumlog.chaos.drivers import registry
from quorumlog.chaos.drivers.driver import CAPABILITIES, AnyDriver
from quorumlog.chaos.drivers.limits import limited
from quorumlog.chaos.drivers.registry import DRIVERS, DriverUnavailable, check_capable, load_driver
from quorumlog.chaos.run.run import run
from quorumlog.chaos.run.run_settings import RunSettings
from quorumlog.chaos.workloads.registry import WORKLOADS, find_workload
from tests.support.chaos.log_in_memory import LogInMemory


@dataclass(frozen=True)
class Needs:
    requires: frozenset[str]
    name: str = "w"


def test_every_name_of_a_capability_is_known() -> None:
    for workload in WORKLOADS.values():
        assert workload.requires <= CAPABILITIES.keys()
    every = frozenset[str]().union(*(load_driver(name).capabilities for name in DRIVERS))
    assert every == CAPABILITIES.keys()


def test_a_driver_with_limits_keeps_them() -> None:
    driver = load_driver("client")
    assert limited(driver) is driver


def test_an_unable_driver_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def load(name: str) -> AnyDriver:
        if name == "confluent":
            raise DriverUnavailable(name)
        return load_driver("client") if name == "client" else limited(LogInMemory())

    monkeypatch.setattr(registry, "load_driver", load)
    check_capable("client", Needs(frozenset({"groups"})))
    said = "workload w needs a driver that can groups, and aiokafka cannot; client can"
    with pytest.raises(ValueError, match=said):
        check_capable("aiokafka", Needs(frozenset({"groups"})))
    monkeypatch.setattr("quorumlog.chaos.run.run.load_driver", load)
    (tmp_path / "history.jsonl").write_text("precious")
    settings = RunSettings(out=tmp_path, workload="group_consume", driver="aiokafka")
    with pytest.raises(ValueError, match="workload group_consume needs a driver"):
        run(settings, lambda *_: None)
    assert (tmp_path / "history.jsonl").read_text() == "precious"


@pytest.mark.parametrize("name", sorted(DRIVERS))
def test_what_a_driver_can_do_is_in_the_table_of_the_chapter(name: str) -> None:
    try:
        capabilities = load_driver(name).capabilities
    except DriverUnavailable as error:
        pytest.skip(str(error))
    chapter = Path(__file__).parents[3] / "docs" / "chaos.md"
    (row,) = (line for line in chapter.read_text().splitlines() if line.startswith(f"| `{name}` |"))
    assert {*row.split("|")[3].replace(",", " ").split()} == capabilities
    assert find_workload("append_read").requires <= capabilities
