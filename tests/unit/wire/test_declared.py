"""Structs that declare their fields on the wire, once each."""

import pytest

from quorumlog.wire.codec.declared import on_wire, wire
from quorumlog.wire.codec.message import Field, Message, Struct
from quorumlog.wire.codec.schemas import decode_message, encode_message


@on_wire
class Leaf(Struct):
    number: int = wire("int32", default=-1)


@on_wire
class Tree(Message):
    name: str | None = wire("string", default=None, nullable="0+")
    leaves: list[Leaf] = wire([Leaf], default_factory=list)
    late: int = wire("int64", "1+", default=7, tag=0)

    VERSIONS = range(2)
    FLEXIBLE_SINCE = 1


def test_the_attributes_are_the_fields_in_their_order() -> None:
    assert (
        Field("name", "string", "0+", nullable="0+"),
        Field("leaves", [Leaf], "0+"),
        Field("late", "int64", "1+", tag=0),
    ) == Tree.FIELDS


def test_absent_attributes_have_their_defaults_and_share_no_list() -> None:
    first, second = Tree(), Tree()
    first.leaves.append(Leaf())
    assert second == Tree(name=None, leaves=[], late=7)


@pytest.mark.parametrize(("version", "late"), [(0, 7), (1, 9)])
def test_a_message_survives_its_bytes_in_every_version(version: int, late: int) -> None:
    tree = Tree(name="oak", leaves=[Leaf(number=1), Leaf()], late=9)
    content = b"".join(encode_message(tree, version))
    assert decode_message(Tree, version, content) == Tree(
        name="oak", leaves=[Leaf(number=1), Leaf()], late=late
    )
