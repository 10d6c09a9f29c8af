"""The wheel, installed with nothing but its dependencies, works as a new user tries it.

Extras are absent, so that a command that imports one by mistake fails here. The environment has
neither the checkout nor its packages. To build the wheel takes a package index.
"""

import json
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import every_help
from tests.support.cli.installation import Installation, distribution_tools, wheel_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600), pytest.mark.xdist_group("wheel")]
ROOT = Path(__file__).parents[2]
PLUGIN_TEST = """
from quorumlog.client.sync import SyncConsumer, SyncProducer
from quorumlog.client import TopicPartition


def test_a_record_survives_its_leader(quorumlog_cluster, topic, nemesis):
    with SyncProducer(quorumlog_cluster.bootstrap) as producer:
        producer.send_and_wait(topic, b"one")
        nemesis.kill("partition-leader")
        producer.send_and_wait(topic, b"two")
    with SyncConsumer(quorumlog_cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        values = []
        while len(values) < 2:
            for records in consumer.poll(1_000).values():
                values += [record.value for record in records]
    assert values == [b"one", b"two"]
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("wheel"))
    installation.install_alone(wheel_of(tmp_path_factory), "pytest")
    yield installation
    installation.quorumlog("down", "--all")


def test_a_wheel_without_a_compiler_is_pure_python(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tools = distribution_tools(tmp_path_factory)
    for name in ("README.md", "LICENSE", "NOTICE", "pyproject.toml", "hatch_build.py"):
        shutil.copy(ROOT / name, tmp_path)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "quorumlog", tmp_path / "quorumlog", ignore=ignored)
    built = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    tools.run([str(tools.bin / "pip"), *built, str(tmp_path)], CC="false")
    [wheel] = tmp_path.glob("*-py3-none-any.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "of")
    code = "from quorumlog.native import lane; print(lane.state)"
    shown = tools.run([sys.executable, "-c", code], PYTHONPATH=str(tmp_path / "of"))
    assert shown.startswith("not compiled: ")


def test_every_command_shows_its_help(installed: Installation) -> None:
    assert "None" in installed.python(
        "-c", "import importlib.util as u; print(u.find_spec('numpy'))"
    )
    shown = installed.python(every_help.__file__).splitlines()
    assert shown == [" ".join(words) for words in every_help.every_command()]
    assert "not here: histories and checks need" in installed.quorumlog("chaos", "list", "models")


def test_records_go_through_a_cluster(installed: Installation) -> None:
    up = json.loads(installed.quorumlog("up", "--detach", "--port", "0", "--json"))
    assert len(up["nodes"]) == 3
    installed.quorumlog("topics", "create", "orders", "--replication", "3")
    installed.quorumlog("produce", "orders", lines="a\nb\nc\n")
    read = installed.quorumlog("consume", "orders", "--from", "beginning", "--max", "3")
    assert sorted(read.splitlines()) == ["a", "b", "c"]
    installed.quorumlog("down")


def test_a_core_is_simulated(installed: Installation) -> None:
    shown = installed.quorumlog("simulate", "--seeds", "1", "--duration", "5s")
    assert "no invariant broke" in shown


def test_the_plugin_kills_a_leader(installed: Installation) -> None:
    (installed.directory / "test_survival.py").write_text(PLUGIN_TEST)
    assert "1 passed" in installed.python("-m", "pytest", "-q", "test_survival.py")
