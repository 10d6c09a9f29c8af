"""Each import contract, with a violation planted in a temporary copy."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CLOCK = {"storage/clock.py": "import time"}
PLANTS: list[tuple[str, dict[str, str]]] = [
    ("1. Layers", {"storage/__init__.py": "import quorumlog.broker"}),
    ("1. Layers", {"stray/__init__.py": ""}),
    ("2. The client", {"broker/__init__.py": "import quorumlog.client"}),
    ("3. Chaos", {"chaos/faults/__init__.py": "import quorumlog.broker.partitions.core"}),
    ("4. The broker", {"broker/server/__init__.py": "import quorumlog.metadata_quorum.core"}),
    ("5. Pure", {"broker/groups/core/__init__.py": "import asyncio"}),
    ("5. Pure", {"broker/groups/core/__init__.py": "import quorumlog.storage.clock", **CLOCK}),
    ("8. The simulator", {"chaos/simulation/kernel/__init__.py": "import asyncio"}),
    ("8. The simulator", {"chaos/simulation/worlds/__init__.py": "import quorumlog.wire.io"}),
    ("8. The simulator", {"chaos/simulation/running.py": "import quorumlog.broker.fetching.io"}),
    ("9. Chance", {"chaos/simulation/worlds/quorum/world.py": "import random"}),
    ("9. Chance", {"chaos/simulation/running.py": "import time"}),
]


def lint_imports(directory: Path) -> str:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    return done.stdout


@pytest.mark.parametrize(("contract", "plant"), PLANTS)
def test_a_planted_import_is_reported(contract: str, plant: dict[str, str], tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    package = shutil.copytree(ROOT / "quorumlog", tmp_path / "quorumlog")
    for name, line in plant.items():
        (package / name).parent.mkdir(exist_ok=True)
        with (package / name).open("a") as file:
            file.write(line + "\n")
    report = lint_imports(tmp_path)
    assert [line for line in report.splitlines() if line.startswith(contract) and "BROKEN" in line]
