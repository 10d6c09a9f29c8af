"""A planted bug is in the product's own class, and in a disk's, for all who use them."""

import subprocess
import sys
from typing import cast

import pytest

from tools.recall_injection import replace, sites_of, watch
from tools.recall_runs import MUTANTS


class Grandparent:
    def inherited(self) -> str:
        return "inherited"


class Sound(Grandparent):
    limit = 1

    def first(self) -> str:
        return "first"

    def second(self) -> str:
        return "second"

    @classmethod
    def named(cls) -> str:
        return cls.__name__

    @property
    def size(self) -> int:
        return self.limit


class Broken(Sound):
    limit = 2

    def first(self) -> str:
        return f"broken {super().first()}, {super().second()}"

    def second(self) -> str:
        return f"broken {super().second()}"

    def inherited(self) -> str:
        return f"broken {super().inherited()}"

    @classmethod
    def named(cls) -> str:
        return f"broken {super().named()}"

    @property
    def size(self) -> int:
        return -super().size


@pytest.fixture
def sound() -> type[Sound]:
    """Return a copy of the class: a replaced method stays replaced."""
    names = ("first", "second", "named", "size", "limit")
    return cast(
        type[Sound], type("Copied", (Grandparent,), {name: vars(Sound)[name] for name in names})
    )


def test_a_replaced_method_finds_the_methods_that_were_there(sound: type[Sound]) -> None:
    replace(sound, {name: vars(Broken)[name] for name in ("first", "second", "inherited", "limit")})
    one = sound()
    assert one.first() == "broken first, second"
    assert one.second() == "broken second"
    assert one.inherited() == "broken inherited"
    assert one.limit == 2


def test_class_methods_and_properties_are_replaced_alike(sound: type[Sound]) -> None:
    replace(sound, {name: vars(Broken)[name] for name in ("named", "size")})
    assert sound.named() == "broken Copied"
    assert sound().size == -1


def test_each_use_of_a_method_is_noted(sound: type[Sound]) -> None:
    used: list[str] = []
    watch([(sound, "first"), (sound, "named"), (sound, "size")], lambda site: used.append(site[1]))
    one = sound()
    assert (one.first(), one.second(), sound.named(), one.size) == ("first", "second", "Copied", 1)
    assert used == ["first", "named", "size"]


def test_every_mutant_breaks_methods_of_the_product() -> None:
    assert [name for name in MUTANTS if not sites_of(name)] == []


@pytest.mark.parametrize(
    ("mutant", "program"),
    [
        (
            "commits_alone",
            "from quorumlog.broker.partitions.core import high_watermark\n"
            "rule = high_watermark.HighWatermarkRule\n"
            "assert rule.replicas_that_count(None, None, 0) == ()",
        ),
        (
            "names_are_not_flushed",
            "from quorumlog.storage.io.disk import RealDisk\n"
            "RealDisk().fsync_dir('/no/such/directory')",
        ),
    ],
)
def test_a_planted_bug_changes_what_the_class_does(mutant: str, program: str) -> None:
    plant = f"from tools.recall_injection import inject\ninject({mutant!r})\n"
    planted, sound = (
        subprocess.run([sys.executable, "-c", text], check=False, capture_output=True, text=True)
        for text in (plant + program, program)
    )
    assert planted.returncode == 0, planted.stderr
    assert sound.returncode == 1
