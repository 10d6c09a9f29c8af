"""Planted bugs in the tests of the product: the sound rule becomes the broken rule, everywhere.

A mutant is a class that inherits a rule, and nodes take it as a part. Tests make the sound rule
themselves, so that its own class must change: the mutant's methods replace those of the class that
it inherits, and their `super()` finds the replaced methods. A mutant of the disk comes between a
disk's methods and their callers. One process has one mutant: nothing is restored.
"""

import dataclasses
import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial, wraps
from types import FunctionType
from typing import Any, Final

from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.chaos.mutants.parts import ChangedResponses, HandsOn, Unchecked, UncheckedQuorum
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.schemas import response_class
from tools.recall_runs import MUTANTS

_OF_THE_LAB: Final = "quorumlog.chaos"
_WITHOUT_CHECKS: Final = (Unchecked, UncheckedQuorum)
"""The product's own checks stay: they are a part of what the tests execute."""
_DISKS: Final = (RealDisk, SimDisk)
_NOT_A_RULE: Final = frozenset(
    {"__module__", "__doc__", "__dict__", "__weakref__", "__slots__", "__qualname__"}
    | {"__annotations__", "__abstractmethods__", "_abc_impl", "__parameters__", "__orig_bases__"}
)

Site = tuple[type, str]
"""A class of the product, and the name of a method or value that a mutant replaces there."""
Note = Callable[[Site], None]


def sites_of(mutant: str) -> list[Site]:
    """Return the methods whose use shows that a test has to do with the rule.

    None: the mutant cannot be injected.
    """
    found: dict[Site, None] = {}
    for owner, values in _replacements(mutant):
        for name in values:
            if hasattr(owner, name) and _unwrapped(getattr_static(owner, name))[1] is not None:
                found[owner, name] = None
            elif hasattr(owner, name):  # a value: each method may use it
                found |= dict.fromkeys(
                    (owner, one) for one in vars(owner) if one not in _NOT_A_RULE
                )
    for api_key in _changed_handlers(mutant):
        found[response_class(api_key), "__init__"] = None
    return [*found]


def inject(mutant: str) -> None:
    """Break the rule in this process. Raises ValueError if the mutant cannot be injected."""
    replacements = [*_replacements(mutant)]
    if not replacements and not _changed_handlers(mutant):
        raise ValueError(f"mutant {mutant} cannot be injected")
    for owner, values in replacements:
        replace(owner, values)
    (handlers,) = gc.get_referents(HANDLERS)  # the dict behind the view
    handlers.update(_changed_handlers(mutant))


def replace(owner: type, values: dict[str, Any]) -> None:
    """Give a class other methods and values. Their `super()` finds the class as it is now."""
    before = dict(vars(owner))
    for name, value in values.items():
        setattr(owner, name, _planted(value, owner, before))


def watch(sites: list[Site], note: Note) -> None:
    """Call `note` at each use of a site, from now on; a value is not watched."""
    for owner, name in dict.fromkeys(sites):
        kind, called = _unwrapped(getattr_static(owner, name))
        if called is not None:
            setattr(owner, name, kind(_noting(called, partial(note, (owner, name)))))


def getattr_static(owner: type, name: str) -> Any:
    """Return the attribute as the class, or a base class, has it. Raises KeyError."""
    return next(vars(base) for base in owner.__mro__ if name in vars(base))[name]


def _noting(called: Callable[..., Any], note: Callable[[], None]) -> Callable[..., Any]:
    @wraps(called)
    def noted(*arguments: Any, **options: Any) -> Any:
        note()
        return called(*arguments, **options)

    return noted


def _unwrapped(attribute: Any) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """Return the kind of descriptor, and its function: None for a value."""
    if isinstance(attribute, classmethod | staticmethod):
        return type(attribute), attribute.__func__
    if isinstance(attribute, property):
        return property, attribute.fget
    is_function = callable(attribute) and not isinstance(attribute, type)
    return (lambda function: function), attribute if is_function else None


# --- which classes a mutant consists of ---


def _replacements(mutant: str) -> Iterator[tuple[type, dict[str, Any]]]:
    """Yield classes of the product with their new methods, in the order of their inheritance."""
    for broken in _classes(MUTANTS[mutant].parts, set()):
        chain = _chain(broken)
        if HandsOn in chain:
            yield from _disk_replacements(broken)
            continue
        owner = next(one for one in broken.__mro__ if one not in chain)
        for one in reversed(chain):
            values = {
                name: value
                for name, value in vars(one).items()
                if name not in _NOT_A_RULE and not _is_nested(value)
            }
            if values and one not in _WITHOUT_CHECKS:
                yield owner, values


def _classes(part: Any, seen: set[int]) -> Iterator[type]:
    """Yield the classes of the lab in a part of a node; they replace methods of the product."""
    if id(part) in seen:
        return
    seen.add(id(part))
    if _is_of_the_lab(part) and not issubclass(part, ChangedResponses):
        yield part
        inner = [value for base in _chain(part) for value in vars(base).values()]
    elif isinstance(part, FunctionType):
        inner = [*_closed_over(part)]
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        inner = [getattr(part, field.name) for field in dataclasses.fields(part)]
    elif isinstance(part, Mapping):
        inner = [*part.values()]
    else:
        inner = []
    for one in inner:
        yield from _classes(one, seen)


def _closed_over(function: FunctionType) -> list[type]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    values = [cell.cell_contents for name, cell in cells if name != "__class__"]
    return [value for value in values if _is_of_the_lab(value)]


def _is_of_the_lab(value: Any) -> bool:
    return isinstance(value, type) and value.__module__.startswith(_OF_THE_LAB)


def _chain(broken: type) -> list[type]:
    return [one for one in broken.__mro__ if _is_of_the_lab(one)]


def _is_nested(value: Any) -> bool:
    """Return whether the value only plants another class, which is injected itself."""
    if isinstance(value, FunctionType):
        return bool(_closed_over(value))
    is_data = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return _is_of_the_lab(value) or (is_data and any(_classes(value, set())))


def _changed_handlers(mutant: str) -> dict[int, Any]:
    planted = MUTANTS[mutant].dependencies.handlers
    return {key: one for key, one in planted.items() if HANDLERS.get(key) is not one}


# --- how a class gets them ---


def _planted(value: Any, owner: type, before: dict[str, Any]) -> Any:
    """Return the value with a `super()` that finds the class as it was before."""
    if isinstance(value, FunctionType):
        return _with_super(value, owner, before)
    if isinstance(value, classmethod | staticmethod):
        return type(value)(_with_super(value.__func__, owner, before))
    if isinstance(value, property):
        return property(_with_super(value.fget, owner, before))
    return value


def _with_super(function: Any, owner: type, before: dict[str, Any]) -> FunctionType:
    def found() -> Any:
        frame = sys._getframe(1)  # noqa: SLF001 - as the real super() does
        return _Before(owner, before, frame.f_locals[frame.f_code.co_varnames[0]])

    return _copied(function, {**function.__globals__, "super": found})


def _copied(function: Any, its_globals: dict[str, Any]) -> FunctionType:
    copied = FunctionType(
        function.__code__,
        its_globals,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


class _Before:
    """An object, or a class, with the attributes that its class had before."""

    def __init__(self, owner: type, before: dict[str, Any], of: Any) -> None:
        object.__setattr__(self, "_found", (owner, before, of))

    def __getattribute__(self, name: str) -> Any:
        owner, before, of = object.__getattribute__(self, "_found")
        if name not in before:
            return getattr(super(owner, of), name)
        attribute = before[name]
        if not hasattr(attribute, "__get__"):
            return attribute
        return (
            attribute.__get__(None, of) if isinstance(of, type) else attribute.__get__(of, type(of))
        )


# --- disks ---


def _disk_replacements(broken: type) -> Iterator[tuple[type, dict[str, Any]]]:
    names = {name for base in _chain(broken) for name in vars(base) if not name.startswith("__")}
    for disk in _DISKS:
        sound = dict(vars(disk))
        wrappers: dict[int, Any] = {}
        yield (
            disk,
            {name: _DiskMethod(broken, sound, wrappers, name) for name in sorted(names & {*sound})},
        )


class _DiskMethod:
    """A method of a disk that goes by way of a wrapper: one wrapper for each disk."""

    def __init__(
        self, broken: type, sound: dict[str, Any], wrappers: dict[int, Any], name: str
    ) -> None:
        self._broken, self._sound, self._wrappers, self._name = broken, sound, wrappers, name

    def __get__(self, disk: Any, of: type | None = None) -> Any:
        if disk is None:
            return self
        if id(disk) not in self._wrappers:  # which keeps the disk, so that its id stays unique
            self._wrappers[id(disk)] = self._broken(_SoundDisk(disk, self._sound))
        return getattr(self._wrappers[id(disk)], self._name)


class _SoundDisk:
    """A disk with its own methods."""

    def __init__(self, disk: Any, sound: dict[str, Any]) -> None:
        self._disk, self._sound = disk, sound

    def __getattr__(self, name: str) -> Any:
        if name not in self._sound:
            return getattr(self._disk, name)
        return self._sound[name].__get__(self._disk, type(self._disk))
