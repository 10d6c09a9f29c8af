"""Distributions as an index takes them, the container and the CI examples: their commands run.

Commands of the Containerfile and of the workflows run in a virtual environment, where their
absolute directories are temporary ones. It needs a package index.
"""

import json
import re
import shlex
import shutil
import signal
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.cli.installation import ROOT, Installation, distribution_tools, needed, wheel_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("distribution"),
]
WAIT_S: Final = 60.0
RUN_TESTS: Final = """#!/bin/bash
set -eu
quorumlog topics create ci --bootstrap "$BOOTSTRAP"
echo one | quorumlog produce ci --bootstrap "$BOOTSTRAP"
test "$(quorumlog consume ci --from beginning --max 1 --bootstrap "$BOOTSTRAP")" = one
echo "$BOOTSTRAP" > tested
"""


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return distribution_tools(tmp_path_factory)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_of(tmp_path_factory)


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An environment of a user, with most that quorumlog requires, but still without it."""
    installation = Installation(tmp_path_factory.mktemp("user"))
    installation.copy_packages("pytest", *needed(distribution("quorumlog"), "seed"))
    yield installation
    if (installation.bin / "quorumlog").exists():
        installation.quorumlog("down", "--all")


def test_an_index_takes_both_distributions(tools: Installation) -> None:
    files = [str(path) for path in sorted((tools.directory / "dist").iterdir())]
    assert [Path(file).name.partition("-")[0] for file in files] == ["quorumlog"] * 2
    shown = tools.run([str(tools.bin / "twine"), "check", "--strict", *files])
    assert shown.count("PASSED") == 2


def test_the_native_lane_needs_no_new_libc(tools: Installation) -> None:
    [wheel] = (tools.directory / "dist").glob("*.whl")
    if wheel.name.endswith("-any.whl"):
        pytest.skip("there is no C compiler: the wheel is pure Python")
    tools.run([str(tools.bin / "auditwheel"), "repair", "--wheel-dir", "repaired", str(wheel)])
    [repaired] = (tools.directory / "repaired").iterdir()
    assert "-abi3-manylinux2014_" in repaired.name


def test_a_source_distribution_has_the_files_of_the_repository_alone(tools: Installation) -> None:
    [path] = (tools.directory / "dist").glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert not [name for name in names if name.endswith((".so", ".pyc"))]
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        kept = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert names - {"PKG-INFO"} == {*kept.stdout.splitlines()} - {".gitattributes"}


def test_a_wheel_has_the_package_and_its_notices_alone(tools: Installation) -> None:
    [path] = (tools.directory / "dist").glob("*.whl")
    names = zipfile.ZipFile(path).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"quorumlog"}
    notices = [name.rpartition("/")[2] for name in names if "/licenses/" in name]
    assert sorted(notices) == ["LICENSE", "NOTICE"]
    assert path.stat().st_size < 4_000_000


def instructions(stage: int) -> list[tuple[str, str]]:
    """Return the instructions of a stage of the Containerfile."""
    lines = (ROOT / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    found: list[list[tuple[str, str]]] = []
    for line in lines:
        if line and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            if word == "FROM":
                found.append([])
            found[-1].append((word, rest))
    return found[stage]


def arguments(stage: int, word: str) -> list[str]:
    return [rest for name, rest in instructions(stage) if name == word]


def test_a_container_runs_as_a_user_and_copies_what_a_build_needs() -> None:
    assert all(re.search(r":\d", image) for stage in (0, 1) for image in arguments(stage, "FROM"))
    copied = [word for text in arguments(0, "COPY") for word in shlex.split(text)[:-1]]
    project = (ROOT / "pyproject.toml").read_text()
    assert all((ROOT / path).exists() for path in copied)
    assert {"pyproject.toml", "hatch_build.py", "README.md", "quorumlog"} <= {*copied}
    assert all(f'"{name}"' in project for name in ("LICENSE", "NOTICE") if name in copied)
    words = [name for name, _ in instructions(1)]
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert arguments(1, "USER") == ["quorumlog"]


def test_the_commands_of_the_container_serve_clients(
    tools: Installation, users: Installation, tmp_path: Path
) -> None:
    """The build, the start by entry point and command, the check of health, the stop.

    The first stage runs where all that the build requires is installed, and so without isolation.
    """
    places = {"/wheels": str(tmp_path / "wheels"), "/data": str(tmp_path / "data")}

    def here(text: str) -> str:
        return re.sub(r"/(wheels|data)\b", lambda found: places[found[0]], text)

    source = tmp_path / "src"
    source.mkdir()
    for text in arguments(0, "COPY"):
        *names, _ = shlex.split(text)
        for name in names:
            (source / name).symlink_to(ROOT / name)
    isolation = {"PIP_NO_BUILD_ISOLATION": "false"}  # pip reads it as the option's opposite
    for stage, installation, more in ((0, tools, isolation), (1, users, {})):
        for command in arguments(stage, "RUN"):
            if command.startswith("pip "):  # the others need root
                installation.run(["bash", "-c", here(command)], directory=source, **more)
    (tmp_path / "data").mkdir()
    [entry], [options] = arguments(1, "ENTRYPOINT"), arguments(1, "CMD")
    [check] = arguments(1, "HEALTHCHECK")
    healthy = json.loads(here(check[check.index("[") :]))
    command = json.loads(here(entry)) + json.loads(options)
    with subprocess.Popen(command, env=users.environment(), cwd=tmp_path / "data") as running:
        try:
            _until_healthy(users, healthy, running)
            users.quorumlog("topics", "create", "t", "--bootstrap", "localhost:9092")
        finally:
            running.send_signal(signal.SIGTERM)
        assert running.wait(WAIT_S) == 0


def _until_healthy(
    users: Installation, check: list[str], running: "subprocess.Popen[bytes]"
) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while subprocess.run(
        check, env=users.environment(), capture_output=True, check=False
    ).returncode:
        assert running.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.2)


@pytest.fixture
def variables(users: Installation, wheel: Path, tmp_path: Path) -> dict[str, str]:
    """Make the files that a workflow finds; return its variables."""
    if not (users.bin / "quorumlog").exists():
        users.pip("install", str(wheel))
    script = tmp_path / "run-tests"
    script.write_text(RUN_TESTS)
    script.chmod(0o755)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_it.py").write_text(
        "def test_it(quorumlog_cluster, topic):\n    assert topic\n"
    )
    (tmp_path / "environment").touch()
    return {"QUORUMLOG": str(wheel), "GITHUB_ENV": str(tmp_path / "environment")}


@pytest.mark.parametrize("job", ["python", "any-language"])
def test_the_steps_of_the_workflow_run(
    users: Installation, tmp_path: Path, variables: dict[str, str], job: str
) -> None:
    workflow: dict[Any, Any] = yaml.safe_load((ROOT / "examples/ci/github-actions.yml").read_text())
    assert workflow["env"].keys() == {"QUORUMLOG"}
    for step in workflow["jobs"][job]["steps"]:
        assert step.keys() & {"uses", "run"}
        if "run" in step and step.get("if") != "failure()":
            text = step["run"].replace("${{ matrix.release }}", "3.9")
            assert "${{" not in text
            users.run(["bash", "-euc", text], directory=tmp_path, **variables)
            pairs = (line.partition("=") for line in _lines(tmp_path / "environment"))
            variables |= {name: value for name, _, value in pairs}
    if job == "any-language":
        assert (tmp_path / "tested").read_text().strip() == variables["BOOTSTRAP"]
        status = [str(users.bin / "quorumlog"), "status"]
        ended = subprocess.run(status, cwd=tmp_path, capture_output=True, check=False)
        assert ended.returncode == 1


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def example(language: str) -> str:
    """Return the block of a language in docs/ci.md."""
    page = (ROOT / "docs/ci.md").read_text()
    [text] = re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert isinstance(text, str)
    return text


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node.js")
@pytest.mark.usefixtures("variables")
def test_the_set_up_in_javascript_runs(users: Installation, tmp_path: Path) -> None:
    (tmp_path / "setup.js").write_text(example("javascript"))
    code = "require('./setup.js')().then(() => console.log(process.env.BOOTSTRAP))"
    bootstrap = users.run(["node", "-e", code], directory=tmp_path).strip()
    users.run(["./run-tests"], directory=tmp_path, BOOTSTRAP=bootstrap)
    users.quorumlog("down", "--dir", str(tmp_path / "build/kafka"))


@pytest.mark.skipif(shutil.which("go") is None, reason="there is no Go")
@pytest.mark.usefixtures("variables")
def test_the_set_up_in_go_runs(users: Installation, tmp_path: Path) -> None:
    names = ("encoding/json", "log", "os", "os/exec", "testing")
    imports = "".join(f'import "{name}"\n' for name in names)
    test = 'func TestIt(t *testing.T) { if exec.Command("./run-tests").Run() != nil { t.Fail() } }'
    (tmp_path / "it_test.go").write_text(f"package it\n{imports}{example('go')}{test}\n")
    (tmp_path / "go.mod").write_text("module it\n")
    users.run(["go", "test", "-count=1", "."], directory=tmp_path, GOFLAGS="-mod=mod")
    assert (tmp_path / "tested").exists()


def test_the_job_of_gitlab_runs(
    users: Installation, tmp_path: Path, variables: dict[str, str]
) -> None:
    job = yaml.safe_load((ROOT / "examples/ci/gitlab-ci.yml").read_text())["kafka"]
    script = "\n".join([*job["before_script"], *job["script"]])
    users.run(["bash", "-euc", script], directory=tmp_path, **variables)
    users.run(["bash", "-euc", "\n".join(job["after_script"])], directory=tmp_path)
    assert (tmp_path / "tested").exists()
    assert list(tmp_path.glob(job["artifacts"]["paths"][0]))
