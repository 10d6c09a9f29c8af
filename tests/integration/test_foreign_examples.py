"""The examples in other languages, where their tools and packages are there: see their READMEs.

No test downloads a package: `mvn`, `npm` or `go` has done so before, by the README's commands.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]  # Go compiles its client first
EXAMPLES = Path(__file__).parents[2] / "examples"
QUORUMLOG = f"{sys.executable} -m quorumlog"


def require_tool(name: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")


def run(directory: Path, *command: str, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "QUORUMLOG": QUORUMLOG, **environment},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_junit(tmp_path: Path) -> None:
    require_tool("java")
    require_tool("javac")
    directory = EXAMPLES / "junit"
    jars = sorted(map(str, directory.glob("lib/*.jar")))
    if not jars:
        pytest.skip("examples/junit/lib has no jars: see its README")
    (console,) = [jar for jar in jars if "console-standalone" in jar]
    sources = sorted(map(str, directory.glob("*.java")))
    run(directory, "javac", "-cp", ":".join(jars), "-d", str(tmp_path), *sources)
    path = ":".join([str(tmp_path), *jars])
    words = ("execute", "--class-path", path, "--select-class", "LeaderTest")
    shown = run(directory, "java", f"-Dquorumlog={QUORUMLOG}", "-jar", console, *words)
    assert "1 tests successful" in shown


def test_node() -> None:
    require_tool("node")
    directory = EXAMPLES / "node_test"
    if not (directory / "node_modules/kafkajs").exists():
        pytest.skip("examples/node_test has no node_modules: see its README")
    assert "# pass 1" in run(directory, "node", "--test", "--test-reporter=tap")


def test_go() -> None:
    require_tool("go")
    directory = EXAMPLES / "go"
    offline = {**os.environ, "GOPROXY": "off", "GOFLAGS": "-mod=mod"}
    known = subprocess.run(
        ["go", "list", "-deps", "-test", "./..."],
        cwd=directory,
        env=offline,
        capture_output=True,
        check=False,
    )
    if known.returncode != 0:
        pytest.skip("the packages of examples/go are not downloaded: see its README")
    assert "ok" in run(directory, "go", "test", "-count=1", "./...", GOPROXY="off")


def test_every_project_is_run() -> None:
    in_python = {path.parent.name for path in EXAMPLES.glob("*/pyproject.toml")}
    found = {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    assert found - in_python - {"ci"} == {"junit", "node_test", "go"}
