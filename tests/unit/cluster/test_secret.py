"""What a new cluster is given, and no other: its secret, and the marks of its voters."""

from pathlib import Path

import pytest

from quorumlog.cluster import ClusterError, layout
from quorumlog.cluster.layout import SECRET_FILE, make_secret, secret_file

SPEC = layout.plan([("broker", "controller")], host="127.0.0.1", port=9092, config={})


def make(directory: Path, spec: layout.ClusterSpec = SPEC) -> None:
    layout.found(directory, spec)
    layout.save(directory, spec)


def test_a_new_cluster_has_a_secret_that_its_owner_alone_can_read(tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / SECRET_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    secret = path.read_text().strip()
    assert len(secret) >= 43
    properties = layout.properties_file(tmp_path, 1).read_text()
    assert f"control.shared.secret.file={path}\n" in properties
    assert secret not in properties
    assert secret not in (tmp_path / layout.CLUSTER_FILE).read_text()


def test_the_voters_of_a_new_cluster_are_marked(tmp_path: Path) -> None:
    make(tmp_path, layout.plan([("controller",), ("broker",)], host="h", port=9092, config={}))
    assert (layout.data_directory(tmp_path, 1) / "new-cluster").exists()
    assert not layout.data_directory(tmp_path, 2).exists()


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ClusterError, match="choose another --dir"):
        layout.found(tmp_path / "file" / "c", SPEC)


def test_the_secret_stays_when_the_cluster_is_started_again(tmp_path: Path) -> None:
    make(tmp_path)
    before = (tmp_path / SECRET_FILE).read_text()
    make(tmp_path)
    assert (tmp_path / SECRET_FILE).read_text() == before


def test_a_cluster_that_was_made_without_a_secret_goes_on_without(tmp_path: Path) -> None:
    layout.save(tmp_path, SPEC)
    assert secret_file(tmp_path) is None
    assert "secret" not in layout.properties_file(tmp_path, 1).read_text()


def test_a_secret_that_was_half_written_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / f"{SECRET_FILE}.tmp").write_text("hal")
    make_secret(tmp_path)
    assert len((tmp_path / SECRET_FILE).read_text()) > 40
    assert sorted(path.name for path in tmp_path.iterdir()) == [SECRET_FILE]


def test_two_clusters_have_different_secrets(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make(tmp_path / name)
    assert (tmp_path / "a" / SECRET_FILE).read_text() != (tmp_path / "b" / SECRET_FILE).read_text()
