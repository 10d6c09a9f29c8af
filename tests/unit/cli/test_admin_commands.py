"""The commands of administrators against fake brokers: tables, documents, refusals."""

import json
import sys
from collections.abc import Iterator

import pytest

from quorumlog.cli.main import main
from quorumlog.cli.output import EXIT_FAILED, EXIT_USAGE, EXIT_VALID
from quorumlog.client import ErrorCode
from quorumlog.client.core.group_protocol import encode_assignment
from quorumlog.client.io import cluster
from quorumlog.wire.codec.messages import consumer_group_describe as consumer_group_describe_
from quorumlog.wire.codec.messages import create_partitions as create_partitions_
from quorumlog.wire.codec.messages import delete_groups as delete_groups_
from quorumlog.wire.codec.messages import delete_records as delete_records_
from quorumlog.wire.codec.messages import describe_configs as describe_configs_
from quorumlog.wire.codec.messages import describe_groups as describe_groups_
from quorumlog.wire.codec.messages import incremental_alter_configs as alter_
from quorumlog.wire.codec.messages import list_groups as list_groups_
from tests.support.client.fake_admin import AdminCluster, only_cluster
from tests.support.client.fake_cluster import T
from tests.unit.client.test_client_sync import in_a_thread


class Shell:
    """Runs commands against the fake cluster."""

    def __init__(
        self,
        cluster: AdminCluster,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self.cluster = cluster
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self.said = ""  # stderr of the last command

    def __call__(self, *words: str, status: int = EXIT_VALID) -> str:
        """Run a command; return its stdout, or its stderr if it is to fail."""
        arguments = ["quorumlog", *words, "--bootstrap", self.cluster.bootstrap]
        self._monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit) as ended:
            main()
        shown = self._capsys.readouterr()
        self.said = shown.err
        assert int(ended.value.code or 0) == status, shown
        return shown.err if status else shown.out

    def json(self, *words: str) -> object:
        return json.loads(self(*words, "--json"))

    def group(self, state: str, *, reads: bool = False) -> None:
        """Let the coordinator describe the group so."""
        member = describe_groups_.DescribedGroupMember(
            member_id="m-1",
            client_id="app",
            client_host="/127.0.0.1",
            member_assignment=encode_assignment([T]),
        )
        one = describe_groups_.DescribedGroup(
            group_id="g",
            group_state=state,
            protocol_type="consumer",
            protocol_data="range" if reads else "",
            members=[member] if reads else [],
        )
        self.cluster.offer(
            describe_groups_.DescribeGroupsRequest,
            describe_groups_.DescribeGroupsResponse(groups=[one]),
        )


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    with in_a_thread(only_cluster()) as brokers:
        brokers.fill(9)
        yield Shell(brokers, monkeypatch, capsys)


def test_a_topic_grows(shell: Shell) -> None:
    one = create_partitions_.CreatePartitionsTopicResult(name="t")
    answer = create_partitions_.CreatePartitionsResponse(results=[one])
    shell.cluster.offer(create_partitions_.CreatePartitionsRequest, answer)
    assert shell("topics", "grow", "t", "--partitions", "6") == "t has 6 partitions\n"
    grown = shell.json("topics", "grow", "t", "--partitions", "6")
    assert grown == {"name": "t", "partitions": 6}
    assert "--partitions" in shell("topics", "grow", "t", "--partitions", "0", status=EXIT_USAGE)


def test_records_are_deleted_up_to_an_offset(shell: Shell) -> None:
    one = delete_records_.DeleteRecordsPartitionResult(partition_index=0, low_watermark=4)
    topic = delete_records_.DeleteRecordsTopicResult(name="t", partitions=[one])
    answer = delete_records_.DeleteRecordsResponse(topics=[topic])
    shell.cluster.offer(delete_records_.DeleteRecordsRequest, answer)
    assert shell("topics", "delete-records", "t", "--before", "4") == "   0  starts at 4\n"
    words = ("topics", "delete-records", "t", "--before", "end", "--partition", "0")
    assert shell.json(*words) == {"name": "t", "partitions": [{"partition": 0, "start": 4}]}
    offsets = [request.topics[0].partitions[0].offset for request in shell.cluster.requests()]
    assert offsets == [4, -1]
    said = shell("topics", "delete-records", "t", "--before", "start", status=EXIT_USAGE)
    assert "--before start: write an offset, or end" in said


def test_what_the_cluster_cannot_do_is_one_line(shell: Shell) -> None:
    said = shell("topics", "grow", "t", "--partitions", "6", status=EXIT_FAILED)
    assert "this cluster has no CreatePartitions" in said
    assert "Traceback" not in said


def test_settings_are_shown_with_their_source(shell: Shell) -> None:
    configs = [
        describe_configs_.DescribeConfigsResourceResult(
            name="retention.ms", value="5", config_source=1
        ),
        describe_configs_.DescribeConfigsResourceResult(
            name="a.password", value="secret", config_source=4, is_sensitive=True
        ),
    ]
    result = describe_configs_.DescribeConfigsResult(
        resource_type=2, resource_name="t", configs=configs
    )
    answer = describe_configs_.DescribeConfigsResponse(results=[result])
    shell.cluster.offer(describe_configs_.DescribeConfigsRequest, answer)
    assert shell("configs", "describe", "topic", "t").splitlines() == [
        "NAME          VALUE  FROM",
        "a.password        -  broker, at start",
        "retention.ms      5  topic",
    ]
    described = shell.json("configs", "describe", "topic", "t")
    assert described == {
        "kind": "topic",
        "name": "t",
        "configs": [
            {
                "name": "a.password",
                "value": None,
                "source": "broker, at start",
                "read_only": False,
                "sensitive": True,
            },
            {
                "name": "retention.ms",
                "value": "5",
                "source": "topic",
                "read_only": False,
                "sensitive": False,
            },
        ],
    }
    assert "topic" in shell("configs", "describe", "disk", "t", status=EXIT_USAGE)


def test_all_brokers_together_have_a_name(shell: Shell) -> None:
    nothing = describe_configs_.DescribeConfigsResult(resource_type=4, resource_name="")
    answer = describe_configs_.DescribeConfigsResponse(results=[nothing])
    shell.cluster.offer(describe_configs_.DescribeConfigsRequest, answer)
    assert shell("configs", "describe", "broker", "") == ""
    assert shell.said == "all brokers: every setting has its default\n"
    done = alter_.AlterConfigsResourceResponse(resource_type=4, resource_name="")
    refused = alter_.AlterConfigsResourceResponse(
        error_code=ErrorCode.INVALID_CONFIG, error_message="said"
    )
    shell.cluster.offer(
        alter_.IncrementalAlterConfigsRequest,
        alter_.IncrementalAlterConfigsResponse(responses=[done]),
        alter_.IncrementalAlterConfigsResponse(responses=[refused]),
    )
    words = ("configs", "alter", "broker", "", "--set", "a=b")
    assert shell(*words) == "altered all brokers\n"
    assert "INVALID_CONFIG: all brokers: said" in shell(*words, status=EXIT_FAILED)


def test_settings_are_altered(shell: Shell) -> None:
    done = alter_.AlterConfigsResourceResponse(resource_type=2, resource_name="t")
    refused = alter_.AlterConfigsResourceResponse(
        error_code=ErrorCode.INVALID_CONFIG, error_message="said"
    )
    shell.cluster.offer(
        alter_.IncrementalAlterConfigsRequest,
        alter_.IncrementalAlterConfigsResponse(responses=[done]),
        alter_.IncrementalAlterConfigsResponse(responses=[refused]),
    )
    words = ("configs", "alter", "topic", "t", "--set", "a=b", "--delete", "c", "--append", "d=e")
    assert shell(*words) == "altered topic t\n"
    (resource,) = shell.cluster.requests()[0].resources
    changes = [(one.name, one.config_operation, one.value) for one in resource.configs]
    assert changes == [("a", 0, "b"), ("d", 2, "e"), ("c", 1, None)]
    assert "INVALID_CONFIG: t: said" in shell(*words, status=EXIT_FAILED)
    said = shell("configs", "alter", "topic", "t", status=EXIT_USAGE)
    assert "nothing to change: give --set" in said
    said = shell("configs", "alter", "topic", "t", "--set", "a", status=EXIT_USAGE)
    assert "name=value" in said.lower()


def test_groups_are_listed_and_described(shell: Shell) -> None:
    listed = list_groups_.ListedGroup(
        group_id="g", protocol_type="consumer", group_state="Stable", group_type="classic"
    )
    shell.cluster.offer(
        list_groups_.ListGroupsRequest, list_groups_.ListGroupsResponse(groups=[listed])
    )
    assert shell("groups", "list").splitlines() == [
        "GROUP  TYPE     STATE   PROTOCOL TYPE",
        "g      classic  Stable  consumer",
    ]
    assert shell.json("groups", "list") == {
        "groups": [
            {"group": "g", "type": "classic", "state": "Stable", "protocol_type": "consumer"}
        ]
    }
    shell.group("Stable", reads=True)
    assert shell("groups", "describe", "g").splitlines() == [
        "g: classic, Stable, coordinator 1, range",
        "MEMBER  CLIENT  HOST        PARTITIONS",
        "m-1     app     /127.0.0.1  t-0",
    ]
    shell.group("Dead")
    assert "group g does not exist" in shell("groups", "describe", "g", status=EXIT_FAILED)


def test_a_group_without_a_protocol_names_none(shell: Shell) -> None:
    shell.group("Empty")
    assert shell("groups", "describe", "g") == "g: classic, Empty, coordinator 1\n"


def test_a_group_of_kip_848_is_described_by_its_own_api(shell: Shell) -> None:
    has = consumer_group_describe_.Assignment(
        topic_partitions=[consumer_group_describe_.TopicPartitions(topic_name="t", partitions=[0])]
    )
    member = consumer_group_describe_.Member(
        member_id="m-1", client_id="app", client_host="/127.0.0.1", assignment=has
    )
    group = consumer_group_describe_.DescribedGroup(
        group_id="g", group_state="Reconciling", assignor_name="uniform", members=[member]
    )
    gone = consumer_group_describe_.DescribedGroup(
        group_id="g", error_code=ErrorCode.GROUP_ID_NOT_FOUND
    )
    for answers in ([group, group], [gone]):
        shell.group("Dead")
        shell.cluster.offer(
            consumer_group_describe_.ConsumerGroupDescribeRequest,
            *(
                consumer_group_describe_.ConsumerGroupDescribeResponse(groups=[one])
                for one in answers
            ),
        )
        if answers == [gone]:
            said = shell("groups", "describe", "g", status=EXIT_FAILED)
            assert "group g does not exist" in said
            continue
        assert shell("groups", "describe", "g").splitlines() == [
            "g: consumer, Reconciling, coordinator 1, uniform",
            "MEMBER  CLIENT  HOST        PARTITIONS",
            "m-1     app     /127.0.0.1  t-0",
        ]
        described = dict(shell.json("groups", "describe", "g"))  # type: ignore[call-overload]
        assert described["type"] == "consumer"


def test_the_lag_is_what_is_not_committed_yet(shell: Shell) -> None:
    shell.group("Stable", reads=True)
    shell.cluster.committed = 4
    shown = shell("groups", "lag", "g").splitlines()
    assert shown == [
        "TOPIC  PARTITION  COMMITTED  END  LAG  CLIENT",
        "t              0          4    9    5  app",
    ]
    row = {"topic": "t", "partition": 0, "committed": 4, "end": 9, "lag": 5}
    whole = {
        "group": "g",
        "state": "Stable",
        "lag": 5,
        "partitions": [{**row, "client": "app", "member_id": "m-1"}],
    }
    assert shell.json("groups", "lag", "g") == whole


def test_a_deleted_topic_has_no_lag(shell: Shell) -> None:
    shell.group("Empty")
    shell.cluster.committed = 4
    del shell.cluster.topics["t"]
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
    reset = ("groups", "reset-offsets", "g")
    assert "give only one of --to-earliest" in shell(*reset, status=EXIT_USAGE)
    said = shell(*reset, "--to-latest", "--to-offset", "5", status=EXIT_USAGE)
    assert "give only one of --to-earliest" in said
    said = shell(*reset, "--to-datetime", "soon", status=EXIT_USAGE)
    assert "--to-datetime 'soon' is no date and time" in said
    said = shell(*reset, "--to-latest", "--topic", "t:x", status=EXIT_USAGE)
    assert "--topic 't:x'" in said
    shell.group("Stable", reads=True)
    said = shell(*reset, "--to-latest", "--execute", status=EXIT_FAILED)
    assert "group g is Stable with 1 members: stop the members first" in said
    shell.group("Dead")
    said = shell(*reset, "--to-latest", status=EXIT_FAILED)
    assert "group g has no committed offsets: name the topics with --topic" in said
    assert shell.cluster.commits == []


def test_groups_are_deleted(shell: Shell) -> None:
    results = [
        delete_groups_.DeletableGroupResult(group_id="g", error_code=code)
        for code in (ErrorCode.NONE, ErrorCode.NON_EMPTY_GROUP)
    ]
    answers = [delete_groups_.DeleteGroupsResponse(results=[one]) for one in results]
    shell.cluster.offer(delete_groups_.DeleteGroupsRequest, *answers)
    assert shell("groups", "delete", "g") == "deleted g\n"
    assert "NON_EMPTY_GROUP: group g" in shell("groups", "delete", "g", status=EXIT_FAILED)


def test_consuming_a_topic_that_does_not_exist_ends(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "UNKNOWN_TOPIC_MS", 20)
    for group in ((), ("--group", "g")):
        said = shell("consume", "typo", *group, status=EXIT_FAILED)
        assert "UNKNOWN_TOPIC_OR_PARTITION" in said
        assert "'typo'" in said
