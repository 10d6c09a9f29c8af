"""A package with parts of its own for the lab, as an installation of it would be found."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def install(directory: Path, name: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """Write the metadata of version 1.0 of a package: its entry points, by group and name."""
    info = directory / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, entries in groups.items():
        lines += [f"[{group}]", *(f"{entry} = {value}" for entry, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def install_project(directory: Path, project: Path) -> None:
    """Write the metadata of the project of a `pyproject.toml`."""
    found: dict[str, Any] = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    install(directory, found["name"], found["entry-points"])
