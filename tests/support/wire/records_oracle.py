"""kio as a second opinion: random messages of ours, and the same message as kio writes it."""

import dataclasses
import datetime
import io
import random
import uuid
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import _introspect as introspect
from kio.serial import entity_writer

from quorumlog.wire.codec.layout import FieldLayout, layout_of
from quorumlog.wire.codec.message import OWN_TAGS_BEGIN, ZERO_UUID, Message, Struct

MessageT = TypeVar("MessageT", bound=Message)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
RANGES = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**44), 2**44),  # the range of a datetime of kio's
}
ERROR_CODES = sorted(code.value for code in KioErrorCode)


def random_message(draw: random.Random, message_class: type[MessageT], version: int) -> MessageT:
    message = random_struct(draw, message_class, version)
    assert isinstance(message, message_class)
    return message


def random_struct(draw: random.Random, struct: type[Struct], version: int) -> Struct:
    made = struct()
    layout = layout_of(struct, version)
    for field in layout.fields:
        setattr(made, field.name, random_value(draw, field, version))
    for field in layout.tagged:
        is_own = (field.tag or 0) >= OWN_TAGS_BEGIN  # kio has Kafka's fields alone
        if not is_own and draw.random() < 0.5:
            setattr(made, field.name, random_value(draw, field, version))
    return made


def random_value(draw: random.Random, field: FieldLayout, version: int) -> Any:
    if field.nullable and draw.random() < 0.3:
        return None
    if field.is_array:
        return [random_element(draw, field, version) for _ in range(draw.choice((0, 1, 3)))]
    return random_element(draw, field, version)


def random_element(  # noqa: PLR0911 - one line per wire type
    draw: random.Random, field: FieldLayout, version: int
) -> Any:
    if field.struct is not None:
        return random_struct(draw, field.struct, version)
    match field.wire_type:
        case "bool":
            return draw.random() < 0.5
        case "float64":
            return draw.random()
        case "string":
            return "".join(draw.choice("abcé") for _ in range(draw.choice((0, 3, 9, 200))))
        case "bytes":
            return draw.randbytes(draw.choice((0, 5, 300)))
        case "records":
            return draw.randbytes(draw.choice((0, 5, 3000)))
        case "uuid":
            return draw.randbytes(16)
        case _ if "error_code" in field.name:
            return draw.choice(ERROR_CODES)
        case _:
            return draw.randint(*RANGES[field.wire_type])


def kio_bytes(message: Message, kio_class: type[Any]) -> bytes:
    buffer = io.BytesIO()
    entity_writer(kio_class)(buffer, to_kio(message, kio_class))
    return buffer.getvalue()


def to_kio(struct: Struct, kio_class: type[Any]) -> Any:
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kio_class):
        kind = introspect.classify_field(field)
        if isinstance(kind, introspect.PrimitiveField | introspect.PrimitiveTupleField):
            wire_type = introspect.get_schema_field_type(field)
            unit = "_ms" if wire_type.startswith(("timedelta", "datetime")) else ""
            ours = getattr(struct, field.name + unit)
            if isinstance(ours, list):
                values[field.name] = tuple(to_kio_primitive(one, wire_type) for one in ours)
            else:
                values[field.name] = to_kio_primitive(ours, wire_type)
            is_tagged = introspect.get_field_tag(field) is not None
            if is_tagged and ours == ZERO_UUID:
                values[field.name] = None  # kio would write an explicit zero
            continue
        ours = getattr(struct, field.name)
        if isinstance(ours, list):
            values[field.name] = tuple(to_kio(one, kind.type_) for one in ours)
        elif ours is not None:
            values[field.name] = to_kio(ours, kind.type_)
        elif introspect.get_field_tag(field) is None:
            values[field.name] = None
        elif field.default is dataclasses.MISSING:
            values[field.name] = introspect_default(field)
    return kio_class(**values)


def introspect_default(field: "dataclasses.Field[Any]") -> Any:
    from kio.serial._implicit_defaults import get_tagged_field_default

    return get_tagged_field_default(field)


def to_kio_primitive(value: Any, wire_type: str) -> Any:  # noqa: PLR0911 - as above
    if value is None:
        return None
    match wire_type:
        case "error_code":
            return KioErrorCode(value)
        case "timedelta_i32" | "timedelta_i64":
            return datetime.timedelta(milliseconds=value)
        case "datetime_i64":
            if value == -1:
                return None
            return EPOCH + datetime.timedelta(milliseconds=value)
        case "uuid":
            return uuid.UUID(bytes=value)
        case _:
            return value
