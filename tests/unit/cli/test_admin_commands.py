"""The commands of administrators against fake brokers: tables, documents, refusals."""

from typing import Any

import pytest

from quorumlog.cli.output import EXIT_FAILED, EXIT_USAGE
from quorumlog.client import ErrorCode
from quorumlog.client.io import cluster
from tests.support.cli.in_process import Shell


def test_records_are_deleted_up_to_an_offset(shell: Shell) -> None:
    partitions = [{"partition_index": 0, "low_watermark": 4}]
    shell.offer("DeleteRecords", {"topics": [{"name": "t", "partitions": partitions}]})
    assert shell("topics", "delete-records", "t", "--before", "4") == "   0  starts at 4\n"
    words = ("topics", "delete-records", "t", "--before", "end", "--partition", "0")
    assert shell.json(*words) == {"name": "t", "partitions": [{"partition": 0, "start": 4}]}
    offsets = [request.topics[0].partitions[0].offset for request in shell.cluster.requests()]
    assert offsets == [4, -1]
    said = shell("topics", "delete-records", "t", "--before", "start", status=EXIT_USAGE)
    assert "--before start: write an offset, or end" in said


def test_a_topic_grows_if_the_cluster_can(shell: Shell) -> None:
    said = shell("topics", "grow", "t", "--partitions", "6", status=EXIT_FAILED)
    assert "this cluster has no CreatePartitions" in said
    assert "Traceback" not in said
    shell.offer("CreatePartitions", {"results": [{"name": "t"}]})
    assert shell("topics", "grow", "t", "--partitions", "6") == "t has 6 partitions\n"
    grown = shell.json("topics", "grow", "t", "--partitions", "6")
    assert grown == {"name": "t", "partitions": 6}
    assert "--partitions" in shell("topics", "grow", "t", "--partitions", "0", status=EXIT_USAGE)


def test_settings_are_shown_with_their_source(shell: Shell) -> None:
    configs = [
        {"name": "retention.ms", "value": "5", "config_source": 1},
        {"name": "a.password", "value": "secret", "config_source": 4, "is_sensitive": True},
    ]
    result = {"resource_type": 2, "resource_name": "t", "configs": configs}
    shell.offer("DescribeConfigs", {"results": [result]})
    assert shell("configs", "describe", "topic", "t").splitlines() == [
        "NAME          VALUE  FROM",
        "a.password        -  broker, at start",
        "retention.ms      5  topic",
    ]
    password = {"name": "a.password", "value": None, "source": "broker, at start"}
    retention = {"name": "retention.ms", "value": "5", "source": "topic"}
    assert shell.json("configs", "describe", "topic", "t") == {
        "kind": "topic",
        "name": "t",
        "configs": [
            {**password, "read_only": False, "sensitive": True},
            {**retention, "read_only": False, "sensitive": False},
        ],
    }
    assert "topic" in shell("configs", "describe", "disk", "t", status=EXIT_USAGE)


REFUSED = {"error_code": ErrorCode.INVALID_CONFIG, "error_message": "said"}


def test_all_brokers_together_have_a_name(shell: Shell) -> None:
    resource = {"resource_type": 4, "resource_name": ""}
    shell.offer("DescribeConfigs", {"results": [resource]})
    assert shell("configs", "describe", "broker", "") == ""
    assert shell.said == "all brokers: every setting has its default\n"
    shell.offer("IncrementalAlterConfigs", {"responses": [resource]}, {"responses": [REFUSED]})
    words = ("configs", "alter", "broker", "", "--set", "a=b")
    assert shell(*words) == "altered all brokers\n"
    assert "INVALID_CONFIG: all brokers: said" in shell(*words, status=EXIT_FAILED)


def test_settings_are_altered(shell: Shell) -> None:
    done = {"resource_type": 2, "resource_name": "t"}
    shell.offer("IncrementalAlterConfigs", {"responses": [done]}, {"responses": [REFUSED]})
    words = ("configs", "alter", "topic", "t", "--set", "a=b", "--delete", "c", "--append", "d=e")
    assert shell(*words) == "altered topic t\n"
    (resource,) = shell.cluster.requests()[0].resources
    changes = [(one.name, one.config_operation, one.value) for one in resource.configs]
    assert changes == [("a", 0, "b"), ("d", 2, "e"), ("c", 1, None)]
    assert "INVALID_CONFIG: t: said" in shell(*words, status=EXIT_FAILED)
    said = shell("configs", "alter", "topic", "t", status=EXIT_USAGE)
    assert "nothing to change: give --set" in said
    twice = ("--set", "a=b", "--set", "a=c")
    said = shell("configs", "alter", "topic", "t", *twice, status=EXIT_USAGE)
    assert "--set a=c: a is given twice" in said
    said = shell("configs", "alter", "topic", "t", "--set", "a", status=EXIT_USAGE)
    assert "name=value" in said.lower()


def test_groups_are_listed_and_described(shell: Shell) -> None:
    listed = {"group_id": "g", "protocol_type": "consumer", "group_state": "Stable"}
    shell.offer("ListGroups", {"groups": [{**listed, "group_type": "classic"}]})
    assert shell("groups", "list").splitlines() == [
        "GROUP  TYPE     STATE   PROTOCOL TYPE",
        "g      classic  Stable  consumer",
    ]
    group = {"group": "g", "type": "classic", "state": "Stable", "protocol_type": "consumer"}
    assert shell.json("groups", "list") == {"groups": [group]}
    shell.group("Stable", reads=True)
    assert shell("groups", "describe", "g").splitlines() == [
        "g: classic, Stable, coordinator 1, range",
        "MEMBER  CLIENT  HOST        PARTITIONS",
        "m-1     app     /127.0.0.1  t-0",
    ]
    shell.group("Empty")  # without a protocol
    assert shell("groups", "describe", "g") == "g: classic, Empty, coordinator 1\n"
    shell.group("Dead")
    assert "group g does not exist" in shell("groups", "describe", "g", status=EXIT_FAILED)


def test_a_group_of_kip_848_is_described_by_its_own_api(shell: Shell) -> None:
    member: dict[str, Any] = {"member_id": "m-1", "client_id": "app", "client_host": "/127.0.0.1"}
    member["assignment"] = {"topic_partitions": [{"topic_name": "t", "partitions": [0]}]}
    group = {"group_id": "g", "group_state": "Reconciling", "assignor_name": "uniform"}
    shell.group("Dead")
    shell.offer("ConsumerGroupDescribe", {"groups": [{**group, "members": [member]}]})
    assert shell("groups", "describe", "g").splitlines() == [
        "g: consumer, Reconciling, coordinator 1, uniform",
        "MEMBER  CLIENT  HOST        PARTITIONS",
        "m-1     app     /127.0.0.1  t-0",
    ]
    assert shell.json("groups", "describe", "g")["type"] == "consumer"
    gone = {"group_id": "g", "error_code": ErrorCode.GROUP_ID_NOT_FOUND}
    shell.offer("ConsumerGroupDescribe", {"groups": [gone]})
    assert "group g does not exist" in shell("groups", "describe", "g", status=EXIT_FAILED)


def test_the_lag_is_what_is_not_committed_yet(shell: Shell) -> None:
    shell.group("Stable", reads=True)
    shell.cluster.committed = 4
    assert shell("groups", "lag", "g").splitlines() == [
        "TOPIC  PARTITION  COMMITTED  END  LAG  CLIENT",
        "t              0          4    9    5  app",
    ]
    row = {"topic": "t", "partition": 0, "committed": 4, "end": 9, "lag": 5}
    rows = [{**row, "client": "app", "member_id": "m-1"}]
    whole = {"group": "g", "state": "Stable", "lag": 5, "partitions": rows}
    assert shell.json("groups", "lag", "g") == whole
    shell.group("Empty")
    del shell.cluster.topics["t"]  # a deleted topic has no lag
    shown = shell("groups", "lag", "g").splitlines()
    assert shown[1].split() == ["t", "0", "4", "-", "-", "-"]


def test_a_reset_is_shown_and_made_only_if_it_is_asked_for(shell: Shell) -> None:
    shell.group("Empty")
    shell.cluster.committed = 4
    words = ("groups", "reset-offsets", "g", "--shift-by", "-3")
    assert shell(*words).splitlines() == [
        "TOPIC  PARTITION  BEFORE  AFTER",
        "t              0       4      1",
    ]
    assert shell.cluster.commits == []
    moves = [{"topic": "t", "partition": 0, "before": 4, "after": 1}]
    done = {"group": "g", "executed": True, "partitions": moves}
    assert shell.json(*words, "--execute") == done
    assert shell.cluster.commits == [1]
    shell("groups", "reset-offsets", "g", "--topic", "t:0", "--to-latest", "--execute")
    assert shell.cluster.commits == [1, 9]
    early = ("--to-datetime", "1970-01-01T00:00:00")
    shell("groups", "reset-offsets", "g", *early, "--execute")
    assert shell.cluster.commits == [1, 9, 0]


def test_a_reset_that_cannot_be_is_refused(shell: Shell) -> None:
    def said(*words: str, status: int = EXIT_USAGE) -> str:
        return shell("groups", "reset-offsets", "g", *words, status=status)

    assert "give only one of --to-earliest" in said()
    assert "give only one of --to-earliest" in said("--to-latest", "--to-offset", "5")
    assert "--to-datetime 'soon' is no date and time" in said("--to-datetime", "soon")
    assert "--topic 't:x'" in said("--to-latest", "--topic", "t:x")
    shell.group("Stable", reads=True)
    text = "group g is Stable with 1 members: stop the members first"
    assert text in said("--to-latest", "--execute", status=EXIT_FAILED)
    shell.group("Dead")
    text = "group g has no committed offsets: name the topics with --topic"
    assert text in said("--to-latest", status=EXIT_FAILED)
    assert shell.cluster.commits == []


def test_groups_are_deleted(shell: Shell) -> None:
    codes = (ErrorCode.NONE, ErrorCode.NON_EMPTY_GROUP)
    answers = [{"results": [{"group_id": "g", "error_code": code}]} for code in codes]
    shell.offer("DeleteGroups", *answers)
    assert shell("groups", "delete", "g") == "deleted g\n"
    assert "NON_EMPTY_GROUP: group g" in shell("groups", "delete", "g", status=EXIT_FAILED)


def test_consuming_an_unknown_topic_ends(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "UNKNOWN_TOPIC_MS", 20)
    for group in ((), ("--group", "g")):
        said = shell("consume", "typo", *group, status=EXIT_FAILED)
        assert "UNKNOWN_TOPIC_OR_PARTITION" in said
        assert "'typo'" in said
