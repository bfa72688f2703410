"""Trees that try to outlive their command, inside a PID namespace: whatever escapes cannot leave it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.conftest import UID

_SECONDS = 110  # for all the trees: so long a namespace may take to lose what is in it
_namespaced = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="a PID namespace needs root")
def test_no_tree_outlives_its_timeout_and_no_bystander_is_hit(open_directory: Path) -> None:
    """Forks and exits, new sessions, bombs, stopped processes, own subreapers, respawners, shed tags, namespaces."""
    script = Path(__file__).with_name("hostile.py")
    done = subprocess.run(
        [*_namespaced, sys.executable, str(script), str(open_directory), str(UID), "2"],
        capture_output=True, text=True, timeout=_SECONDS, check=False, cwd=script.parents[2],
        env={**os.environ, "PYTHONPATH": str(script.parents[2])},
    )  # fmt: skip
    assert done.stderr == ""
    faults = {name: found for name, found in json.loads(done.stdout).items() if found}
    assert faults == {}
