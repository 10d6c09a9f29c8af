"""Messages: numbers at their edges, byte for byte what kafka-python writes, generated."""

import importlib
import json
import pkgutil
import random
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import grimp
import pytest

from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.message import OWN_TAGS_BEGIN, Message
from quorumlog.wire.codec.messages import APIS
from quorumlog.wire.codec.messages.fetch import FetchRequest, ReplicaState
from quorumlog.wire.codec.messages.metadata import MetadataResponse
from quorumlog.wire.codec.schemas import (
    decode_message,
    encode_message,
    request_class,
    response_class,
)
from quorumlog.wire.codec.varint import (
    UVARINT_LIMIT,
    encode_uvarint,
    read_uvarint,
    skip_tagged_fields,
)
from tests.support.wire.records_oracle import random_message


@pytest.mark.parametrize(
    "value", [0, 1, 127, 128, 16383, 16384, UVARINT_LIMIT, 2**32 - 1, 2**35 - 1]
)
def test_numbers_come_back(value: int) -> None:
    data = encode_uvarint(value)
    assert read_uvarint(memoryview(b"x" + data + b"y"), 1) == (value, 1 + len(data))


def test_a_length_of_six_bytes_is_malformed_even_if_it_is_small() -> None:
    with pytest.raises(MalformedFrame):
        read_uvarint(memoryview(b"\x81\x80\x80\x80\x80\x00"), 0)


def test_a_tagged_field_ends_in_the_frame() -> None:
    assert skip_tagged_fields(memoryview(b"\x01\x05\x02ab"), 0) == 5
    with pytest.raises(MalformedFrame):
        skip_tagged_fields(memoryview(b"\x01\x05\x03ab"), 0)


def test_a_tagged_field_has_the_size_it_says() -> None:
    state = ReplicaState(replica_id=1, replica_epoch=2)
    data = b"".join(encode_message(FetchRequest(replica_state=state), 15))
    assert data.endswith(b"\x01\x01\x0d" + (1).to_bytes(4) + (2).to_bytes(8) + b"\0")
    assert decode_message(FetchRequest, 15, data).replica_state == state
    for size in (12, 14):
        wrong = data[:-14] + bytes([size]) + data[-13:] + b"\0\0"
        with pytest.raises(MalformedFrame):
            decode_message(FetchRequest, 15, wrong)


@pytest.mark.parametrize(
    "size", [*range(UVARINT_LIMIT - 3, UVARINT_LIMIT + 2), 2**15 - 1], ids=lambda size: f"{size}"
)
def test_strings_around_the_end_of_the_table_and_as_long_as_an_int16_says(size: int) -> None:
    message = MetadataResponse(cluster_id="x" * size)
    data = b"".join(encode_message(message, 12))
    assert decode_message(MetadataResponse, 12, data) == message


def test_a_string_that_is_longer_is_refused_even_where_a_varint_counts() -> None:
    longer = b"".join(encode_message(MetadataResponse(cluster_id="x" * 2**15), 12))
    with pytest.raises(MalformedFrame, match="cluster_id: 32768 bytes"):
        decode_message(MetadataResponse, 12, longer)


# --- every message that kafka-python has is byte for byte what it writes ---


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
        if field.tag is None or field.tag < OWN_TAGS_BEGIN:
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


# --- the generator's output today, all in use; the messages need no kio to run ---


ROOT = Path(__file__).parents[3]
PACKAGE = "quorumlog.wire.codec.messages"


def run_python(code: str, *arguments: str) -> str:
    """Run it in another process, from the root of the project; return its output."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return done.stdout


GENERATOR = "import pathlib, sys; sys.path.insert(0, 'tools'); import generate_messages;"


def test_generating_again_gives_what_is_checked_in(tmp_path: Path) -> None:
    run_python(GENERATOR + "generate_messages.generate(pathlib.Path(sys.argv[1]))", str(tmp_path))
    checked_in = ROOT / PACKAGE.replace(".", "/")
    expected = {path.name: path.read_text() for path in checked_in.glob("*.py")}
    assert {path.name: path.read_text() for path in tmp_path.glob("*.py")} == expected


def test_product_code_imports_each_generated_message() -> None:
    graph = grimp.build_graph("quorumlog", cache_dir=None)
    generated = graph.find_children(PACKAGE)
    unused = {name for name in generated if not graph.find_modules_that_directly_import(name)}
    assert generated
    assert unused == set()


def test_a_message_that_product_code_imports_in_any_form_is_generated(tmp_path: Path) -> None:
    lines = (
        f"from {PACKAGE}.fetch import FetchRequest",
        f"from {PACKAGE} import APIS, vote as vote_",
        f"from {PACKAGE} import (\n    end_txn,\n    heartbeat,\n)",
        f"import {PACKAGE}.share_fetch as share",
        f"def later():\n    from {PACKAGE}.metadata import MetadataRequest",
        f"# from {PACKAGE}.produce import ProduceRequest",
        f"text = 'from {PACKAGE}.sync_group import SyncGroupRequest'",
        "import envelope",
    )
    (tmp_path / "below").mkdir()
    (tmp_path / "below/module.py").write_text("\n".join(lines))
    code = "print(*sorted(generate_messages.named_messages(pathlib.Path(sys.argv[1]))))"
    named = run_python(GENERATOR + code, str(tmp_path))
    assert named == "end_txn fetch heartbeat metadata share_fetch vote\n"


def test_at_run_time_there_is_no_kio() -> None:
    code = (
        "import sys; import quorumlog.wire.codec.schemas as s;"
        "s.request_class(0), s.response_class(1), s.request_class(3);"
        "import quorumlog.wire.io.connection;"
        "print([name for name in sys.modules if name.split('.')[0] == 'kio'])"
    )
    assert run_python(code) == "[]\n"
