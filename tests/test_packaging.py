"""A source distribution holds all that its own tests read; the base needs no extra."""

import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OF_GIT = {".gitattributes", ".gitignore"}
ALWAYS_IN = {"pyproject.toml"}


def test_a_source_distribution_has_all_that_is_kept_in_the_repository() -> None:
    sdist = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]
    included = {path.strip("/") for path in sdist["include"]}
    assert {*PROJECT["project"]["license-files"]} <= included
    assert all((ROOT / path).exists() for path in included)
    if (ROOT / ".git").exists():  # else this is a source distribution itself
        command = ["git", "ls-tree", "--name-only", "HEAD"]
        kept = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert {*kept.stdout.split()} - OF_GIT - ALWAYS_IN <= included


def test_an_extra_is_no_dependency_of_the_base() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    optional = {name_of(text) for extra in ("chaos", "spark", "re2") for text in extras[extra]}
    assert optional.isdisjoint(map(name_of, PROJECT["project"]["dependencies"]))


def name_of(requirement: str) -> str:
    return requirement.partition(">")[0]
