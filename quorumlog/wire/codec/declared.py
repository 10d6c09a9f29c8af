"""Structs whose attributes declare their fields on the wire: the messages that are not generated.

`@on_wire` makes a dataclass of a `Struct`; each attribute is a `wire(...)`, in wire order.
"""

from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform

from quorumlog.wire.codec.message import Field, Struct

StructT = TypeVar("StructT", bound=Struct)


def wire(
    kind: Any,
    versions: str = "0+",
    *,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    nullable: str = "",
    tag: int | None = None,
) -> Any:
    """Return an attribute with its default. The other arguments: see `Field`."""
    on_wire = {"type": kind, "versions": versions, "nullable": nullable, "tag": tag}
    return field(default=default, default_factory=default_factory, metadata=on_wire)


@dataclass_transform(kw_only_default=True, field_specifiers=(wire,))
def on_wire(struct: type[StructT]) -> type[StructT]:
    """Return the struct as a dataclass, with the `FIELDS` that its attributes declare."""
    declared = dataclass(slots=True, kw_only=True)(struct)
    declared.FIELDS = tuple(Field(one.name, **one.metadata) for one in fields(declared))  # type: ignore[arg-type]  # a dataclass
    return declared
