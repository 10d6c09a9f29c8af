"""The control listener of a real node: what strangers may ask, and what they may not."""

import http.client
from collections.abc import Mapping
from pathlib import Path

import cbor2
import pytest

from quorumlog import LocalCluster
from quorumlog.cluster import NodeFailed
from quorumlog.cluster.files import SECRET_FILE

pytestmark = pytest.mark.integration
EPOCH_MAX = 2**31 - 1


def ask(
    address: str, method: str, path: str, *, body: bytes = b"", headers: Mapping[str, str]
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(method, path, body=body, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def absurd_pre_vote(cluster: LocalCluster) -> bytes:
    body = {"replica_id": 2, "replica_epoch": EPOCH_MAX, "voter_id": 1, "last_offset_epoch": 9}
    return cbor2.dumps(
        {
            "cluster_id": cluster.spec.cluster_id,
            "protocol_version": 1,
            "sender_id": 2,
            "body": {**body, "last_offset": 9, "pre_vote": True},
        }
    )


def test_strangers_see_the_status_and_are_refused_everything_else(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1) as cluster:
        address = cluster.nodes[0].control
        secret = (tmp_path / SECRET_FILE).read_text().strip()
        vote = absurd_pre_vote(cluster)
        for given in (None, "wrong", secret[:-1], secret + "3"):
            headers = {} if given is None else {"X-Quorumlog-Secret": given}
            for path in ("/healthz", "/readyz", "/api/v1/status", "/metrics"):
                status, content = ask(address, "GET", path, headers=headers)
                assert status == 200
                assert secret.encode() not in content
            for name in ("Vote", "BeginQuorumEpoch", "DeleteTopics", "Nothing"):
                path = f"/rpc/{name}"
                assert ask(address, "POST", path, body=vote, headers=headers)[0] == 403
            assert ask(address, "GET", "/presence?node_id=1", headers=headers)[0] == 403
            for verb in ("roll", "advance", "apply-retention", "compact", "expire-groups"):
                assert (
                    ask(address, "POST", f"/api/v1/{verb}", body=b"{}", headers=headers)[0] == 403
                )
        before = cluster.node_status(1)
        known = {"X-Quorumlog-Secret": secret}
        status, content = ask(address, "POST", "/rpc/Vote", body=vote, headers=known)
        assert status == 200
        assert cbor2.loads(content)["body"]["vote_granted"] is False
        after = cluster.node_status(1)
        assert before is not None
        assert after is not None
        assert after["quorum"]["leader_epoch"] == before["quorum"]["leader_epoch"]
        assert after["quorum"]["is_active_controller"]
    log = (tmp_path / "node-1" / "node.log").read_text()
    assert "the shared secret is missing or wrong" in log
    assert secret not in log


def test_a_damaged_metadata_log_refuses_the_start_after_a_clean_stop(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1):
        pass
    (log,) = tmp_path.glob("node-1/data/__cluster_metadata-0/*.log")
    content = bytearray(log.read_bytes())
    content[100:160] = bytes(60)
    log.write_bytes(content)
    with pytest.raises(NodeFailed, match="metadata log is damaged"):
        LocalCluster(tmp_path).start()
    assert log.read_bytes() == content


def test_a_cluster_that_was_made_without_a_secret_still_starts(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1):
        pass
    (tmp_path / SECRET_FILE).unlink()  # as an earlier version made it
    with LocalCluster(tmp_path) as cluster:
        vote = absurd_pre_vote(cluster)
        answer = ask(cluster.nodes[0].control, "POST", "/rpc/Vote", body=vote, headers={})
        assert answer[0] == 200
