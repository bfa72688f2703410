"""The workspace: how paths are taken, and that its locks leave nothing behind."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pod_host.sandbox.ripgrep import find_ripgrep
from pod_host.sandbox.tools.workspace import PathLocks, Workspace


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        ("a", "{root}/a"),
        ("a/../b/./c/", "{root}/b/c"),
        ("/etc/../x", "/x"),
        (".", "{root}"),
        ("../../../../../..", "/"),
    ],
)
def test_paths_are_joined_and_normalised(workspace: Workspace, path: str, resolved: str) -> None:
    assert workspace.resolve(path) == resolved.format(root=workspace.root)


def test_one_path_is_held_by_one_and_others_do_not_wait() -> None:
    locks = PathLocks()
    entered = threading.Event()
    order: list[str] = []

    def second() -> None:
        entered.set()
        with locks.holding("a"):
            order.append("second")

    with locks.holding("a"):
        waiting = threading.Thread(target=second)
        waiting.start()
        entered.wait()
        with locks.holding("b"):
            order.append("first")
    waiting.join()
    assert order == ["first", "second"]
    assert not locks._held


def test_ripgrep_is_the_one_beside_the_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "")
    found = find_ripgrep()
    assert found is not None
    assert found.is_absolute()
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert find_ripgrep() is None
    (tmp_path / "rg").touch(mode=0o755)
    assert find_ripgrep() == tmp_path / "rg"
