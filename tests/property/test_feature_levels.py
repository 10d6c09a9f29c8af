"""Any order of administrative requests: levels rise with them, and users see none."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from quorumlog.metadata_quorum.cluster_changes import (
    AlterClientQuotas,
    AlterGroupConfigs,
    AlterScramCredentials,
    ConfigChange,
    ConfigChanges,
    CreateAcls,
    DeleteAcls,
    FeatureUpdate,
    Outcomes,
    QuotaAlteration,
    ScramAlteration,
    UpdateFeatures,
    UpgradeType,
)
from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller_requests import ControllerRequest
from quorumlog.metadata_quorum.image.features import (
    ANNOUNCED,
    LEVEL_OF_ACCESS,
    LEVEL_OF_DIRECTORIES,
    LEVEL_OF_GROUP_CONFIGS,
    METADATA_FEATURE,
    NEWEST_LEVEL,
)
from quorumlog.metadata_quorum.image.model import ClusterImage
from quorumlog.metadata_quorum.image.scram import credential_of
from quorumlog.metadata_quorum.image.snapshot_records import image_of as image_of_records
from quorumlog.metadata_quorum.image.snapshot_records import records_of
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset
from tests.support.metadata_quorum.controllers import Bench, image_of, topic
from tests.support.sizes import examples
from tests.unit.metadata_quorum.test_controller_access import ACL, ALL, ANN

CREDENTIAL = credential_of(1, iterations=4096, salt=b"salt", salted_password=b"p")


def group(value: str | None) -> AlterGroupConfigs:
    change = ConfigChange(name="consumer.session.timeout.ms", value=value)
    changes = () if value is None else (change,)
    alteration = ConfigChanges(name="g", changes=changes, replaces_all=True)
    return AlterGroupConfigs(groups=(alteration,))


REQUESTS: dict[str, tuple[ControllerRequest, int]] = {
    "acl": (CreateAcls(acls=(ACL,)), LEVEL_OF_ACCESS),
    "no acl": (DeleteAcls(filters=(ALL,)), LEVEL_OF_ACCESS),
    "quota": (
        AlterClientQuotas(
            alterations=(QuotaAlteration(entity=ANN, values={"producer_byte_rate": 5.0}),)
        ),
        LEVEL_OF_ACCESS,
    ),
    "user": (
        AlterScramCredentials(
            alterations=(ScramAlteration(user="ann", mechanism=1, credential=CREDENTIAL),)
        ),
        LEVEL_OF_ACCESS,
    ),
    "no user": (
        AlterScramCredentials(
            alterations=(ScramAlteration(user="ann", mechanism=1, credential=None),)
        ),
        LEVEL_OF_ACCESS,
    ),
    "group": (group("50000"), LEVEL_OF_GROUP_CONFIGS),
    "bad group": (group("x"), LEVEL_OF_GROUP_CONFIGS),
    "no group": (group(None), LEVEL_OF_GROUP_CONFIGS),
}
RESTARTS = ("fail over", "reload a snapshot")
STEPS = st.lists(
    st.sampled_from([*REQUESTS, "directories", "one directory", "damaged log", *RESTARTS]),
    max_size=8,
)


def founded(features: dict[str, tuple[int, int]] | None = None) -> Bench:
    """Two brokers of this release, in a cluster that brokers with these features founded."""
    bench = Bench(features=ANNOUNCED if features is None else features)
    bench.start(1, 2)
    bench.features = ANNOUNCED
    for broker_id in (1, 2):
        bench.register(broker_id, "new")
        bench.heartbeat(broker_id)
    bench.create(topic("t", 1, 2))
    return bench


def set_level(bench: Bench, level: int) -> ErrorCode:
    now = bench.controller.cluster.feature_level(METADATA_FEATURE)
    kind = UpgradeType.SAFE_DOWNGRADE if level < now else UpgradeType.UPGRADE
    one = FeatureUpdate(name=METADATA_FEATURE, level=level, upgrade_type=kind)
    [outcome] = cast("Outcomes", bench.ask(UpdateFeatures(updates=(one,)))).results
    return outcome.error_code


def take(bench: Bench, step: str) -> Any:
    """Take a step; return what the administrator sees of it."""
    match step:
        case "fail over":
            bench.controller = bench.take_over()
        case "reload a snapshot":
            shown = image_of(bench.controller.cluster)
            rebuilt = image_of_records(records_of(shown), Offset(shown.end_offset))
            bench.controller = Controller(
                rebuilt, bench.settings, random_bytes=bench.random_bytes, now_ms=bench.now_ms
            )
        case "directories" | "one directory":
            log_dirs = ("d1", "e") if step == "directories" else ()
            bench.die(1)
            reply = bench.register(1, f"at {bench.now_ms}", log_dirs=log_dirs)
            bench.heartbeat(1)
            return reply.error_code, reply.error_message
        case "damaged log":
            return bench.report(2, 5, whole=False)
        case _:
            return cast("Outcomes", bench.ask(REQUESTS[step][0])).results
    return None


def shown_by(bench: Bench) -> tuple[Any, ...]:
    """What users set; the brokers' epochs depend on how many records there were."""
    image: ClusterImage = image_of(bench.controller.cluster)
    log_dirs = {broker.broker_id: broker.log_dirs for broker in image.brokers.values()}
    return image.access, image.group_configs, log_dirs


@given(STEPS)
@examples(200)
def test_levels_do_not_show_until_a_request_sets_one(steps: list[str]) -> None:
    new, old, newest = founded(), founded({}), founded()
    assert set_level(newest, NEWEST_LEVEL) is ErrorCode.NONE
    assert old.controller.cluster.feature_level(METADATA_FEATURE) == 1
    assert new.controller.cluster.feature_level(METADATA_FEATURE) == NEWEST_LEVEL
    for step in steps:
        results = [take(bench, step) for bench in (new, old, newest)]
        assert results[0] == results[1] == results[2], step
        assert shown_by(new) == shown_by(old) == shown_by(newest), step


@given(STEPS, st.integers(1, NEWEST_LEVEL), STEPS)
@examples(200)
def test_a_level_that_a_request_has_set_stays(
    before: list[str], level: int, after: list[str]
) -> None:
    bench = founded({})
    for step in before:
        take(bench, step)
    was_set = set_level(bench, level) is ErrorCode.NONE  # else records need a higher one
    for step in after:
        result = take(bench, step)
        now = bench.controller.cluster.feature_level(METADATA_FEATURE)
        assert now == level or not was_set, step
        if was_set and step in REQUESTS:
            is_refused = result[0].error_code is ErrorCode.UNSUPPORTED_VERSION
            assert is_refused is (REQUESTS[step][1] > level), step
        elif was_set and step == "directories":
            is_refused = result[0] is ErrorCode.UNSUPPORTED_VERSION
            assert is_refused is (level < LEVEL_OF_DIRECTORIES)
