"""Every message that kafka-python knows is byte for byte what it writes."""

import importlib
import json
import pkgutil
import random
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from quorumlog.wire.codec.message import Message
from quorumlog.wire.codec.messages import APIS
from quorumlog.wire.codec.schemas import encode_message, request_class, response_class
from tests.support.wire.records_oracle import random_message

KNOWN_DEVIATIONS = {
    "ApiVersionsResponse",  # by design: an answer with an error is read in version 0
    "DeleteTopicsRequest",  # cannot be encoded again without a header
}


def every_subclass(of: type[Any]) -> list[type[Any]]:
    found = []
    for subclass in type.__subclasses__(of):
        found += [subclass, *every_subclass(subclass)]
    return found


def kafka_python_classes() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas the old way
        protocol = importlib.import_module("kafka.protocol")
        for module in pkgutil.walk_packages(protocol.__path__, "kafka.protocol."):
            if ".old" not in module.name and "stubs" not in module.name:
                importlib.import_module(module.name)
    base = importlib.import_module("kafka.protocol.api_message").ApiMessage
    return {
        found.__name__: found
        for found in every_subclass(base)
        if getattr(found, "_json", None) and found._class_version is None
    }


CLASSES = kafka_python_classes()
SHARED = [
    (message_class, CLASSES[message_class.__name__])
    for api_key in sorted(APIS)
    for message_class in (request_class(api_key), response_class(api_key))
    if message_class.__name__ in CLASSES and message_class.__name__ not in KNOWN_DEVIATIONS
]


@pytest.mark.parametrize(("ours", "theirs"), SHARED, ids=lambda found: found.__name__)
def test_kafka_python_reads_it_and_writes_the_same(ours: type[Message], theirs: Any) -> None:
    draw = random.Random(ours.__name__)
    for version in ours.VERSIONS:
        for _ in range(2):
            data = b"".join(encode_message(random_message(draw, ours, version), version))
            assert bytes(theirs.decode(data, version=version).encode()) == data


def test_most_apis_have_this_second_witness() -> None:
    assert len(SHARED) > 95


def snake(name: str) -> str:
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name).lower()


def json_fields(fields: list[dict[str, Any]]) -> set[str]:
    names = set()
    for field in fields:
        names |= {snake(field["name"])} | json_fields(field.get("fields", []))
    return names


def our_fields(message_class: type[Any]) -> set[str]:
    names = set()
    for field in message_class.FIELDS:
        names.add(field.name)
        inner = field.type[0] if isinstance(field.type, list) else field.type
        if not isinstance(inner, str):
            names |= our_fields(inner)
    return names


@pytest.mark.parametrize(("ours", "theirs"), SHARED, ids=lambda found: found.__name__)
def test_the_names_are_kafkas(ours: type[Message], theirs: Any) -> None:
    resources = Path(importlib.import_module("kafka.protocol").__path__[0]) / "schemas/resources"
    text = (resources / f"{ours.__name__}.json").read_text()
    schema = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    known = json_fields(schema["fields"]) | {
        snake(field["name"])
        for struct in schema.get("commonStructs", [])
        for field in struct["fields"]
    }
    assert our_fields(ours) <= known
