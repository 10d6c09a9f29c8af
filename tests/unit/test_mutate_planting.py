"""A mutant replaces the code of a function, whatever decorators have made of it."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tools.mutate.planting import NotPlanted, plant

TEXT = """
import functools
from contextlib import contextmanager

def plain(): return 1
class A:
    def method(self): return 1
    @classmethod
    def of_class(cls): return 1
    @staticmethod
    def static(): return 1
    @property
    def value(self): return 1
    @value.setter
    def value(self, to): self.set_to = 1
    @functools.cached_property
    def cached(self): return 1
class B(A):
    def method(self): return super().method() * 1
@functools.lru_cache
def kept(): return 1
@contextmanager
def context(): yield 1
@registered(3)
def handler(): return 1
@closed
def inside(): return 1
async def waits(): return 1
"""


@dataclass(frozen=True, slots=True)
class Registered:
    handle: Callable[[], int]


def closed(function: Callable[[], int]) -> Callable[[], int]:
    def wrapper() -> int:
        return function()

    return wrapper


@pytest.fixture
def module(tmp_path: Path) -> Iterator[Any]:
    (tmp_path / "planted_here.py").write_text(TEXT)
    made = type(sys)("planted_here")
    made.__dict__.update({"registered": lambda _: Registered, "closed": closed})
    exec(compile(TEXT, "planted_here.py", "exec", dont_inherit=True), made.__dict__)
    sys.modules["planted_here"] = made
    yield made
    del sys.modules["planted_here"]


def mutated(line: str) -> str:
    """Return the text with a 2 for the 1 of a line."""
    assert TEXT.count(line) == 1
    return TEXT.replace(line, line.replace("1", "2"))


@pytest.mark.parametrize(
    ("function", "line", "used"),
    [
        ("plain", "def plain(): return 1", lambda it: it.plain()),
        ("A.method", "def method(self): return 1", lambda it: it.A().method()),
        ("A.of_class", "def of_class(cls): return 1", lambda it: it.A.of_class()),
        ("A.static", "def static(): return 1", lambda it: it.A.static()),
        ("A.value", "def value(self): return 1", lambda it: it.A().value),
        ("A.cached", "def cached(self): return 1", lambda it: it.A().cached),
        ("B.method", "super().method() * 1", lambda it: it.B().method()),
        ("kept", "def kept(): return 1", lambda it: it.kept()),
        ("context", "def context(): yield 1", lambda it: it.context().__enter__()),
        ("handler", "def handler(): return 1", lambda it: it.handler.handle()),
        ("inside", "def inside(): return 1", lambda it: it.inside()),
    ],
)
def test_a_function_has_the_code_of_the_mutant(
    module: Any, function: str, line: str, used: Callable[[Any], int]
) -> None:
    before = getattr(module, function, None)
    plant("planted_here.py", function, mutated(line))
    assert used(module) == 2
    assert getattr(module, function, None) is before


def test_a_setter_is_found_beside_its_getter(module: Any) -> None:
    plant("planted_here.py", "A.value", mutated("self.set_to = 1"))
    one = module.A()
    one.value = 5
    assert (one.set_to, one.value) == (2, 1)


def test_a_mutant_may_lack_the_super_of_its_method(module: Any) -> None:
    plant("planted_here.py", "B.method", TEXT.replace("return super().method() * 1", "pass"))
    assert module.B().method() is None


@pytest.mark.parametrize(
    ("path", "function", "text"),
    [
        ("planted_here.py", "gone", TEXT),
        ("planted_here.py", "Gone.method", TEXT),
        ("not_imported.py", "plain", TEXT),
        ("planted_here.py", "plain", "def plain(: return 1"),
    ],
)
@pytest.mark.usefixtures("module")
def test_a_mutant_that_cannot_be_planted_is_said(path: str, function: str, text: str) -> None:
    with pytest.raises(NotPlanted):
        plant(path, function, text)
