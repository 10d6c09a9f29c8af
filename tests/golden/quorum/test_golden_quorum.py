"""Stories of a quorum, as golden scripts (`tests.support.golden`).

The commands are explained in `tests.support.metadata_quorum.scripted_cluster`.
"""

from pathlib import Path

import pytest

from tests.support import golden
from tests.support.metadata_quorum.scripted_cluster import ScriptedCluster


@golden.scripts_beside(__file__)
def test_quorum_script(script: Path, request: pytest.FixtureRequest) -> None:
    golden.check(script, ScriptedCluster().run, request)
