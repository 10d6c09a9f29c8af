"""The rights that each API needs, and the error without each of them: Kafka 4.3.1, read in it.

A right is a resource and an operation: T (topic t), G (group g), X (transactional id x), C (the
cluster). Alternatives are separated by "or". A place is the path of an error code in the response.
In a body, ID stands for the id of the topic t.
"""

from typing import Any, NamedTuple

TOPIC, GROUP, CLUSTER, TRANSACTION = 29, 30, 31, 53
NOT_ATTEMPTED = 55
ID = object()

Errors = dict[str, int]
Body = dict[str, Any]


class Row(NamedTuple):
    """One API, in one version. `needs`: a right -> the error codes of the response without it."""

    api: str
    version: int | None  # None: the newest
    body: Body
    needs: dict[str, Errors]

    @property
    def label(self) -> str:
        version = "" if self.version is None else f" v{self.version}"
        return f"{self.api}{version}"


def _topics(*parts: int | Body, field: str = "partitions", name: str = "name") -> list[Body]:
    return [{name: "t", field: list(parts)}]


_AT: Body = {"partition_index": 0}
_COMMIT: Body = {"partition_index": 0, "committed_offset": 1}
_RECORDS: Body = {"index": 0, "records": b""}
_PARTITIONS = "topics.partitions.error_code"
_GROUP = {"error_code": GROUP}
_TXN = {"error_code": TRANSACTION}
_TOP = {"error_code": CLUSTER}

DATA = (
    Row(
        "Produce",
        12,
        {"acks": 1, "topic_data": _topics(_RECORDS, field="partition_data")},
        {"T WRITE": {"responses.partition_responses.error_code": TOPIC}},
    ),
    Row(
        "Produce",
        None,
        {
            "acks": -1,
            "transactional_id": "x",
            "topic_data": [{"topic_id": ID, "partition_data": [_RECORDS]}],
        },
        {
            "X WRITE": {"responses.partition_responses.error_code": TRANSACTION},
            "T WRITE": {"responses.partition_responses.error_code": TOPIC},
        },
    ),
    Row(
        "Fetch",
        12,
        {"replica_id": -1, "session_epoch": -1, "topics": _topics({"partition": 0}, name="topic")},
        {"T READ": {"responses.partitions.error_code": TOPIC}},
    ),
    Row(
        "Fetch",
        None,
        {"session_epoch": 0, "topics": [{"topic_id": ID, "partitions": [{"partition": 0}]}]},
        {"T READ": {"responses.partitions.error_code": TOPIC}},
    ),
    Row(
        "Fetch",
        14,
        {
            "replica_id": 2,
            "session_epoch": -1,
            "topics": [{"topic_id": ID, "partitions": [{"partition": 0}]}],
        },
        {"C CLUSTER_ACTION": {"responses.partitions.error_code": TOPIC}},
    ),
    Row(
        "ListOffsets",
        None,
        {"replica_id": -1, "topics": _topics({"partition_index": 0, "timestamp": -1})},
        {"T DESCRIBE": {_PARTITIONS: TOPIC}},
    ),
    Row(
        "DeleteRecords",
        None,
        {"topics": _topics({"partition_index": 0, "offset": 0}), "timeout_ms": 1000},
        {"T DELETE": {_PARTITIONS: TOPIC}},
    ),
    Row(
        "OffsetForLeaderEpoch",
        None,
        {"replica_id": -1, "topics": _topics({"partition": 0}, name="topic")},
        {"T DESCRIBE or C CLUSTER_ACTION": {_PARTITIONS: TOPIC}},
    ),
    Row(
        "DescribeProducers",
        None,
        {"topics": _topics(0, field="partition_indexes")},
        {"T READ": {_PARTITIONS: TOPIC}},
    ),
)

TOPICS = (
    Row("Metadata", 0, {"topics": [{"name": "t"}]}, {"T DESCRIBE": {"topics.error_code": TOPIC}}),
    Row(
        "Metadata",
        None,
        {"topics": [{"topic_id": ID, "name": None}]},
        {"T DESCRIBE": {"topics.error_code": TOPIC}},
    ),
    Row(
        "Metadata",
        None,
        {"topics": [{"name": "t-new"}], "allow_auto_topic_creation": True},
        {
            "T DESCRIBE": {"topics.error_code": TOPIC},
            "T CREATE or C CREATE": {"topics.error_code": TOPIC},
        },
    ),
    Row(
        "DescribeTopicPartitions",
        None,
        {"topics": [{"name": "t"}], "response_partition_limit": 10},
        {"T DESCRIBE": {"topics.error_code": TOPIC}},
    ),
    Row(
        "CreateTopics",
        None,
        {
            "topics": [{"name": "t-new", "num_partitions": 1, "replication_factor": 1}],
            "timeout_ms": 1000,
            "validate_only": True,
        },
        {
            "T CREATE or C CREATE": {"topics.error_code": TOPIC},
            "T DESCRIBE_CONFIGS": {"topics.topic_config_error_code": TOPIC},
        },
    ),
    Row(
        "CreatePartitions",
        None,
        {"topics": [{"name": "t", "count": 3}], "timeout_ms": 1000, "validate_only": True},
        {"T ALTER": {"results.error_code": TOPIC}},
    ),
    Row(
        "DeleteTopics",
        5,
        {"topic_names": ["t"], "timeout_ms": 1000},
        {"T DELETE or C DELETE": {"responses.error_code": TOPIC}},
    ),
    Row(
        "DeleteTopics",
        None,
        {"topics": [{"topic_id": ID, "name": None}], "timeout_ms": 1000},
        {"T DELETE or C DELETE": {"responses.error_code": TOPIC}},
    ),
    *(
        Row(
            api,
            None,
            {"resources": [{"resource_type": kind, "resource_name": name}], "validate_only": True},
            {f"{letter} {operation}": {place: code}},
        )
        for api, operation, place in (
            ("DescribeConfigs", "DESCRIBE_CONFIGS", "results.error_code"),
            ("AlterConfigs", "ALTER_CONFIGS", "responses.error_code"),
            ("IncrementalAlterConfigs", "ALTER_CONFIGS", "responses.error_code"),
        )
        for letter, kind, name, code in (
            ("T", 2, "t", TOPIC),
            ("C", 4, "1", CLUSTER),
            ("C", 16, "s", CLUSTER),
            ("G", 32, "g", GROUP),
        )
    ),
)

GROUPS = (
    Row(
        "OffsetCommit",
        2,
        {"group_id": "g", "topics": _topics(_COMMIT)},
        {"G READ": {_PARTITIONS: GROUP}, "T READ": {_PARTITIONS: TOPIC}},
    ),
    Row(
        "OffsetCommit",
        None,
        {"group_id": "g", "topics": [{"topic_id": ID, "partitions": [_COMMIT]}]},
        {"G READ": {_PARTITIONS: GROUP}, "T READ": {_PARTITIONS: TOPIC}},
    ),
    Row(
        "OffsetFetch",
        1,
        {"group_id": "g", "topics": _topics(0, field="partition_indexes")},
        {"G DESCRIBE": {_PARTITIONS: GROUP}, "T DESCRIBE": {_PARTITIONS: TOPIC}},
    ),
    Row(
        "OffsetFetch",
        7,
        {"group_id": "g", "topics": _topics(0, field="partition_indexes")},
        {"G DESCRIBE": {"error_code": GROUP}, "T DESCRIBE": {_PARTITIONS: TOPIC}},
    ),
    Row(
        "OffsetFetch",
        None,
        {"groups": [{"group_id": "g", "topics": [{"topic_id": ID, "partition_indexes": [0]}]}]},
        {
            "G DESCRIBE": {"groups.error_code": GROUP},
            "T DESCRIBE": {"groups.topics.partitions.error_code": TOPIC},
        },
    ),
    Row("FindCoordinator", 3, {"key": "g", "key_type": 0}, {"G DESCRIBE": _GROUP}),
    *(
        Row(
            "FindCoordinator",
            None,
            {"coordinator_keys": [key], "key_type": kind},
            {right: {"coordinators.error_code": code}},
        )
        for key, kind, right, code in (
            ("g", 0, "G DESCRIBE", GROUP),
            ("x", 1, "X DESCRIBE", TRANSACTION),
            ("g:t:0", 2, "C CLUSTER_ACTION", CLUSTER),
        )
    ),
    *(
        Row(api, None, {"group_id": "g", **body}, {"G READ": _GROUP})
        for api, body in (
            ("JoinGroup", {"session_timeout_ms": 6000, "protocol_type": "consumer"}),
            ("Heartbeat", {}),
            ("LeaveGroup", {"members": [{"member_id": "m"}]}),
            ("SyncGroup", {"protocol_type": "consumer", "protocol_name": "range"}),
        )
    ),
    Row("JoinGroup", 0, {"group_id": "g", "session_timeout_ms": 6000}, {"G READ": _GROUP}),
    Row("LeaveGroup", 0, {"group_id": "g", "member_id": "m"}, {"G READ": _GROUP}),
    Row("DescribeGroups", None, {"groups": ["g"]}, {"G DESCRIBE": {"groups.error_code": GROUP}}),
    Row("DeleteGroups", None, {"groups_names": ["g"]}, {"G DELETE": {"results.error_code": GROUP}}),
    Row(
        "OffsetDelete",
        None,
        {"group_id": "g", "topics": _topics(_AT)},
        {"G DELETE": _GROUP, "T READ": {_PARTITIONS: TOPIC}},
    ),
    Row(
        "ConsumerGroupHeartbeat",
        None,
        {
            "group_id": "g",
            "member_id": "m",
            "rebalance_timeout_ms": 1000,
            "subscribed_topic_names": ["t"],
            "topic_partitions": [],
        },
        {"G READ": _GROUP, "T DESCRIBE": {"error_code": TOPIC}},
    ),
    Row(
        "ConsumerGroupDescribe",
        None,
        {"group_ids": ["g"]},
        {"G DESCRIBE": {"groups.error_code": GROUP}},
    ),
)

_RESULTS = "results_by_topic_v3_and_below.results_by_partition.partition_error_code"

TRANSACTIONS = (
    Row(
        "InitProducerId",
        None,
        {"transactional_id": "x", "transaction_timeout_ms": 1000},
        {"X WRITE": _TXN},
    ),
    Row(
        "InitProducerId", None, {"transactional_id": None}, {"C IDEMPOTENT_WRITE or T WRITE": _TOP}
    ),
    Row(
        "AddPartitionsToTxn",
        3,
        {"v3_and_below_transactional_id": "x", "v3_and_below_topics": _topics(0)},
        {"X WRITE": {_RESULTS: TRANSACTION}, "T WRITE": {_RESULTS: TOPIC}},
    ),
    Row(
        "AddPartitionsToTxn",
        None,
        {"transactions": [{"transactional_id": "x", "topics": _topics(0)}]},
        {"C CLUSTER_ACTION": _TOP},
    ),
    Row(
        "AddOffsetsToTxn",
        None,
        {"transactional_id": "x", "group_id": "g"},
        {"X WRITE": _TXN, "G READ": _GROUP},
    ),
    Row("EndTxn", None, {"transactional_id": "x"}, {"X WRITE": _TXN}),
    Row(
        "TxnOffsetCommit",
        None,
        {"transactional_id": "x", "group_id": "g", "topics": _topics(_COMMIT)},
        {
            "X WRITE": {_PARTITIONS: TRANSACTION},
            "G READ": {_PARTITIONS: GROUP},
            "T READ": {_PARTITIONS: TOPIC},
        },
    ),
    Row(
        "WriteTxnMarkers",
        None,
        {"markers": [{"producer_id": 1, "topics": _topics(0, field="partition_indexes")}]},
        {"C ALTER or C CLUSTER_ACTION": {"markers.topics.partitions.error_code": CLUSTER}},
    ),
    Row(
        "DescribeTransactions",
        None,
        {"transactional_ids": ["x"]},
        {"X DESCRIBE": {"transaction_states.error_code": TRANSACTION}},
    ),
)

_ACL: Body = {
    "resource_type": 2,
    "resource_name": "z",
    "resource_pattern_type": 3,
    "principal": "User:z",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
_FILTER: Body = {
    "resource_type_filter": 2,
    "resource_name_filter": "z",
    "pattern_type_filter": 3,
    "principal_filter": "User:z",
    "host_filter": "*",
    "operation": 3,
    "permission_type": 3,
}
_ENTITY: Body = {"entity": [{"entity_type": "user", "entity_name": "z"}], "ops": []}

ADMINISTRATION = (
    Row("DescribeAcls", None, _FILTER, {"C DESCRIBE": _TOP}),
    Row("CreateAcls", None, {"creations": [_ACL]}, {"C ALTER": {"results.error_code": CLUSTER}}),
    Row(
        "DeleteAcls",
        None,
        {"filters": [_FILTER]},
        {"C ALTER": {"filter_results.error_code": CLUSTER}},
    ),
    Row(
        "AlterReplicaLogDirs",
        None,
        {"dirs": [{"path": "/none", "topics": _topics(0)}]},
        {"C ALTER": {"results.partitions.error_code": CLUSTER}},
    ),
    Row("DescribeLogDirs", None, {"topics": None}, {"C DESCRIBE": _TOP}),
    Row(
        "ElectLeaders",
        None,
        {"topic_partitions": _topics(0, name="topic"), "timeout_ms": 1000},
        {
            "C ALTER": {
                "error_code": CLUSTER,
                "replica_election_results.partition_result.error_code": CLUSTER,
            }
        },
    ),
    Row(
        "AlterPartitionReassignments",
        None,
        {"topics": _topics({"partition_index": 0, "replicas": [1]}), "timeout_ms": 1000},
        {"C ALTER": {"error_code": CLUSTER, "responses.partitions.error_code": CLUSTER}},
    ),
    Row("ListPartitionReassignments", None, {"topics": None}, {"C DESCRIBE": _TOP}),
    Row("DescribeClientQuotas", None, {"components": []}, {"C DESCRIBE_CONFIGS": _TOP}),
    Row(
        "AlterClientQuotas",
        None,
        {"entries": [_ENTITY], "validate_only": True},
        {"C ALTER_CONFIGS": {"entries.error_code": CLUSTER}},
    ),
    Row("DescribeUserScramCredentials", None, {"users": None}, {"C DESCRIBE": _TOP}),
    Row(
        "AlterUserScramCredentials",
        None,
        {"deletions": [{"name": "z", "mechanism": 1}]},
        {"C ALTER": {"results.error_code": CLUSTER}},
    ),
    Row(
        "DescribeQuorum",
        None,
        {"topics": [{"topic_name": "z", "partitions": [_AT]}]},
        {"C DESCRIBE": _TOP},
    ),
    Row("UpdateFeatures", None, {"feature_updates": [], "validate_only": True}, {"C ALTER": _TOP}),
    Row("UnregisterBroker", None, {"broker_id": 9}, {"C ALTER": _TOP}),
    Row("ListConfigResources", None, {}, {"C DESCRIBE_CONFIGS": _TOP}),
    Row("AddRaftVoter", None, {"cluster_id": "another"}, {"C ALTER": _TOP}),
    Row("RemoveRaftVoter", None, {"cluster_id": "another"}, {"C ALTER": _TOP}),
    *(
        Row(
            api,
            None,
            {"group_id": "g", "topics": [{"topic_id": ID, "partitions": [{"partition": 0}]}]},
            {"C CLUSTER_ACTION": {"results.partitions.error_code": CLUSTER}},
        )
        for api in (
            "InitializeShareGroupState",
            "ReadShareGroupState",
            "WriteShareGroupState",
            "DeleteShareGroupState",
            "ReadShareGroupStateSummary",
        )
    ),
)

ROWS = (*DATA, *TOPICS, *GROUPS, *TRANSACTIONS, *ADMINISTRATION)

FILTERS = frozenset({"ListGroups", "ListTransactions", "DescribeCluster"})
"""APIs that refuse no client: they leave out items, or need no right."""
