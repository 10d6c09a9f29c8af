"""Structs that declare their fields on the wire, once each."""

import math

import pytest

from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import Field, Message, Struct, replaced, wire
from quorumlog.wire.codec.schemas import decode_message, encode_message


class Leaf(Struct):
    number: int = wire("int32", default=-1)


class Tree(Message):
    VERSIONS = range(2)
    FLEXIBLE_SINCE = 1
    name: str | None = wire("string", default=None, nullable="0+")
    leaves: list[Leaf] = wire([Leaf], default_factory=list)
    first: Leaf = wire(Leaf, default_factory=Leaf)
    late: int = wire("int64", "1+", default=7, tag=0)


class Bare(Message):
    VERSIONS = range(1)
    FLEXIBLE_SINCE = 1


def test_the_attributes_are_the_fields_in_their_order() -> None:
    assert (
        Field("name", "string", "0+", nullable="0+"),
        Field("leaves", [Leaf], "0+", default_factory=list),
        Field("first", Leaf, "0+", default_factory=Leaf),
        Field("late", "int64", "1+", tag=0, default=7),
    ) == Tree.FIELDS
    assert [*Tree.__slots__] == ["name", "leaves", "first", "late"]
    assert not hasattr(Tree(), "__dict__")


def test_absent_attributes_have_their_defaults_and_share_no_list_or_struct() -> None:
    first, second = Tree(), Tree()
    first.leaves.append(Leaf())
    first.first.number = 5
    assert second == Tree(name=None, leaves=[], first=Leaf(number=-1), late=7)
    assert Bare() == Bare()


def test_each_field_is_a_keyword_and_no_other_word() -> None:
    with pytest.raises(TypeError, match="size"):
        Tree(size=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        Leaf(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no arguments"):
        Bare(name="oak")  # type: ignore[call-arg]


def test_a_struct_inherits_no_fields_beside_its_own() -> None:
    with pytest.raises(InvariantViolation):
        type("Oak", (Tree,), {"age": wire("int32", default=0)})


def test_a_class_below_has_its_own_constructor_from_its_first_instance_on() -> None:
    class Base(Message):
        number: int = wire("int32", default=3)

    class Below(Base):
        def __init__(self, **fields: int) -> None:
            super().__init__(**fields)
            self.number += 1

    assert [Below().number, Below(number=5).number, Base().number] == [4, 6, 3]


def test_a_class_below_without_fields_has_the_fields_of_its_base() -> None:
    class Elm(Tree):
        pass

    assert Elm(late=1) == Elm(late=1) != Elm(late=2)
    assert "late=1" in repr(Elm(late=1))
    assert replaced(Elm(name="elm"), late=1) == Elm(name="elm", late=1)
    with pytest.raises(InvariantViolation, match="base"):
        type("Wych", (Elm,), {"age": wire("int32", default=0)})


def test_a_default_is_any_value_that_instances_cannot_change() -> None:
    other = type("Leaf", (Struct,), {"size": wire("int8", default=3)})

    class Odd(Struct):
        ratio: float = wire("float64", default=math.nan)
        code: int = wire("int16", default=ErrorCode.UNKNOWN_SERVER_ERROR)
        first: Leaf = wire(Leaf, default_factory=Leaf)
        second: Struct = wire(other, default_factory=other)

    made = Odd()
    assert math.isnan(made.ratio)
    assert made.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert (made.first, made.second) == (Leaf(), other())
    shared: list[object] = [[], Leaf()]
    for default in shared:
        with pytest.raises(InvariantViolation, match="'leaves'"):
            type("Shared", (Struct,), {"leaves": wire([Leaf], default=default)})


@pytest.mark.parametrize(("version", "late"), [(0, 7), (1, 9)])
def test_a_message_survives_its_bytes_in_every_version(version: int, late: int) -> None:
    tree = Tree(name="oak", leaves=[Leaf(number=1), Leaf()], late=9)
    content = b"".join(encode_message(tree, version))
    assert decode_message(Tree, version, content) == Tree(
        name="oak", leaves=[Leaf(number=1), Leaf()], late=late
    )
