"""A seed is checked as a whole; an error names the line, the field and the nearest valid name."""

from pathlib import Path
from typing import Any

import pytest

from quorumlog.cluster import InvalidArgument, LocalCluster
from quorumlog.cluster.seed_file import SeedRecord, SeedSource

ALIASES = "topics: &a0 [x]\n" + "".join(
    f"n{one}: &a{one} [{', '.join([f'*a{one - 1}'] * 9)}]\n" for one in range(1, 20)
)
"""Nine to the power of 19 values in a kilobyte."""


def refused(tmp_path: Path, text: str) -> list[str]:
    """Return the lines of the error, without the directory."""
    path = tmp_path / "seed.yaml"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as found:
        SeedSource(path)
    return str(found.value).replace(f"{tmp_path}/", "").splitlines()


def record(**fields: Any) -> SeedRecord:
    topic = {"name": "t", "records": [{"value": None, **fields}]}
    return SeedSource({"topics": [topic]}).seed.topics[0].records[0]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "topics:\n  - name: orders\n    partitons: 3\n",
            "seed.yaml:3: topics.0.partitons: there is no such field; did you mean partitions?",
        ),
        ("topic: []\n", "seed.yaml:1: topic: there is no such field; did you mean topics?"),
        (
            "users:\n  - {zzz: 1, name: a, password: b}\n",
            "seed.yaml:2: users.0.zzz: there is no such field; there are name, password, "
            "mechanism, iterations",
        ),
        (
            "topics:\n  - name: a\n    configs:\n      retention.mss: 1\n",
            "seed.yaml:3: topics.0.configs: Unknown topic config name: retention.mss, did you mean "
            "retention.ms?",
        ),
        (
            "topics:\n  - name: a\n    configs: {retention.ms: soon}\n",
            "seed.yaml:3: topics.0.configs: Invalid value soon for configuration retention.ms: "
            "Not a number",
        ),
        ("topics:\n  - partitions: 1\n", "seed.yaml:2: topics.0.name: it is missing"),
        (
            "topics:\n  - name: a\n    records:\n      - {value: x, partition: 1}\n",
            "seed.yaml:2: topics.0: records.0 is for partition 1; the topic has 0 to 0",
        ),
        (
            "topics:\n  - name: a\n    records:\n      - {value: 2026-01-31}\n",
            "seed.yaml:4: topics.0.records.0.value: 2026-01-31 is no text, number, list or object; "
            "write it in quotes",
        ),
        (
            "topics:\n  - name: a\n    records:\n      - {value: x, timestamp: soon}\n",
            "seed.yaml:4: topics.0.records.0.timestamp: write ms since 1970, or "
            "2026-01-31T12:00:00Z",
        ),
        (
            "acls:\n  - {principal: 'User:a', operation: raed, resource_name: t}\n",
            "seed.yaml:2: acls.0.operation: 'raed' is unknown; did you mean read?",
        ),
        ("topics:\n  - {name: a}\n  - {name: a}\n", "seed.yaml: the topic a is there twice"),
        (
            "topics:\n  - {name: a}\ngroups:\n  - {name: g, offsets: [{topic: a, partition: 1, "
            "offset: 0}]}\n",
            "seed.yaml: the group g has an offset of a-1; the topic has partitions 0 to 0",
        ),
        ("topics:\n  - name: a\n    name: b\n", "seed.yaml:3: no YAML: name is there twice"),
        ("topics: [\n", "seed.yaml:2: no YAML: expected the node content, but found "),
        ("? [a]\n: 1\n", "seed.yaml:1: no YAML: the name of a field is a list or an object"),
        ("topics: !!bool x\n", "seed.yaml: no YAML: a tag (!!int, !!bool) has a value of another "),
        ("topics: !!int\n", "seed.yaml: no YAML: a tag (!!int, !!bool) has a value of another "),
        ("a: !!timestamp x\n", "seed.yaml: no YAML: a tag (!!int, !!bool) has a value of another "),
        ("&a [*a]\n", "seed.yaml: it is nested too deeply, or contains itself"),
        ("[" * 3000, "seed.yaml: it is nested too deeply, or contains itself"),
        ("- " * 99_000 + "a", "seed.yaml: it is nested too deeply, or contains itself"),
        (ALIASES, "seed.yaml: no YAML: its aliases repeat more than 100000 fields"),
        ("- 1\n", "seed.yaml: Input should be a valid dictionary or instance of Seed"),
    ],
)
def test_an_error_names_its_place(tmp_path: Path, text: str, error: str) -> None:
    [line] = refused(tmp_path, text)
    assert line.startswith(error)


def test_all_errors_are_named_at_once(tmp_path: Path) -> None:
    text = "users:\n" + "  - {name: a}\n" * 12
    lines = refused(tmp_path, text)
    assert lines[0] == "seed.yaml:2: users.0.password: it is missing"
    assert lines[10:] == ["and 2 more"]


def test_a_missing_file_is_an_error_of_the_argument(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="No such file"):
        LocalCluster(tmp_path / "c", seed=tmp_path / "seed.yaml")
    assert not (tmp_path / "c").exists()


def test_an_empty_file_is_an_empty_seed(tmp_path: Path) -> None:
    (tmp_path / "seed.yaml").write_text("# nothing yet\n")
    assert SeedSource(tmp_path / "seed.yaml").seed.topics == []


def test_keys_and_values_become_bytes() -> None:
    assert record(key="k", value="ü").value == "ü".encode()
    assert record(value={"id": 1, "name": "ü"}).value == '{"id": 1, "name": "ü"}'.encode()
    assert record(value=[1, True]).value == b"[1, true]"
    assert record(value=7).value == b"7"
    assert record(value=b"\xff").value == b"\xff"
    assert record(value=None).value is None
    assert record(headers={"h": None, "i": "x"}).headers == {"h": None, "i": b"x"}


def test_times_are_ms_since_1970_and_utc_without_a_zone(tmp_path: Path) -> None:
    assert record(timestamp=5).timestamp == 5
    assert record(timestamp="1970-01-01T00:00:01").timestamp == 1000
    assert record(timestamp="1970-01-01T01:00:01+01:00").timestamp == 1000
    (tmp_path / "seed.yaml").write_text(
        "topics: [{name: t, records: [{value: x, timestamp: 1970-01-01T00:00:01Z}]}]"
    )
    [topic] = SeedSource(tmp_path / "seed.yaml").seed.topics
    assert topic.records[0].timestamp == 1000


def test_configs_become_kafkas_text() -> None:
    configs = {"cleanup.policy": ["compact", "delete"], "preallocate": True, "retention.ms": 5}
    [topic] = SeedSource({"topics": [{"name": "t", "configs": configs}]}).seed.topics
    assert topic.configs == {
        "cleanup.policy": "compact,delete",
        "preallocate": "true",
        "retention.ms": "5",
    }


def test_a_password_is_not_shown() -> None:
    seed = SeedSource({"users": [{"name": "a", "password": "secret"}]}).seed
    assert "secret" not in repr(seed)


def test_without_the_packages_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumlog.extras.find_spec", lambda _name: None)
    with pytest.raises(InvalidArgument, match=r"a seed needs pydantic: pip install '.*\[seed\]'"):
        LocalCluster(tmp_path / "c", seed={})


@pytest.mark.parametrize(
    ("given", "hint"), [("3.9.1", "did you mean 3.9? "), ("5.0", ""), ("", "")]
)
def test_an_unknown_release_is_refused_with_the_list(tmp_path: Path, given: str, hint: str) -> None:
    with pytest.raises(InvalidArgument) as found:
        LocalCluster(tmp_path / "c", as_version=given)
    text = str(found.value)
    assert text.startswith(f"--as-version {given}: {hint}there are 2.8, 3.0, ")
    assert text.endswith("4.3, and newest")


def test_a_release_is_recorded_and_ended(tmp_path: Path) -> None:
    assert LocalCluster(tmp_path, as_version="3.9").spec.config["as.version"] == "3.9"
    assert LocalCluster(tmp_path, as_version="newest").check() == []
