"""Where a run keeps its files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pod_host.dev import directories
from pod_host.errors import ConfigurationError
from pod_host.limits import SANDBOX_UID

ROOT = os.geteuid() == 0


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """State goes below the test's own directory, for root too; the commands' user can reach what is in it."""
    monkeypatch.setattr(directories, "ROOT_STATE", tmp_path / "state" / "pod-host" / "dev")
    for path in (tmp_path, *tmp_path.parents):
        if path == Path("/tmp") or not path.is_relative_to("/tmp"):
            break
        path.chmod(path.stat().st_mode | 0o011)
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def refused(given: Path, environ: dict[str, str]) -> str:
    with pytest.raises(ConfigurationError) as fault, directories.kept(given, environ):
        pass
    (line,) = fault.value.faults
    assert line.startswith("--keep: ")
    assert "\n" not in line
    return line


def test_a_temporary_one_is_gone_at_the_end_whatever_commands_left_in_it() -> None:
    with directories.temporary() as at:
        locked = at.workspace / "locked" / "inner"
        locked.mkdir(parents=True)
        (locked / "file").write_text("x")
        (at.workspace / "link").symlink_to("/etc/passwd")
        locked.chmod(0)
        locked.parent.chmod(0o500)
        base = at.workspace.parent
        assert at.fresh
    assert not base.exists()
    assert Path("/etc/passwd").exists()


def test_nothing_that_commands_may_not_see_lies_in_the_workspace() -> None:
    with directories.temporary() as at:
        for path in (at.harness, at.runtime, at.skills):
            assert not path.is_relative_to(at.workspace)
        assert at.runtime.stat().st_mode & 0o777 == 0o700
        if ROOT:
            assert at.workspace.stat().st_uid == SANDBOX_UID
            assert at.harness.stat().st_uid == 0


def test_a_kept_workspace_stays_and_finds_its_state_again(tmp_path: Path, environ: dict[str, str]) -> None:
    workspace = tmp_path / "made" / "for me"
    with directories.kept(workspace, environ) as first:
        assert first.workspace == workspace
        assert first.fresh
        (first.runtime / "mark").write_text("x")
        state = first.runtime.parent
        assert state.is_relative_to(tmp_path / "state" / "pod-host" / "dev")
    (tmp_path / "link").symlink_to(workspace)
    with directories.kept(tmp_path / "link", environ) as second:
        assert second.workspace == workspace
        assert (second.runtime / "mark").read_text() == "x"
        assert not second.fresh
    with directories.kept(tmp_path / "another", environ) as other:
        assert other.runtime != second.runtime


def test_a_workspace_that_another_run_has_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    with directories.kept(tmp_path / "w", environ):
        assert "another pod-host dev has" in refused(tmp_path / "w", environ)
    with directories.kept(tmp_path / "w", environ):
        pass


def test_a_file_is_no_workspace(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "file").write_text("x")
    assert "is not a directory" in refused(tmp_path / "file", environ)
    assert "Not a directory" in refused(tmp_path / "file" / "inner", environ)


def test_a_workspace_that_holds_the_state_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    assert "holds pod-host's own state" in refused(tmp_path, environ)


def test_a_workspace_that_the_commands_user_cannot_write_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    workspace = tmp_path / "theirs"
    workspace.mkdir(mode=0o755 if ROOT else 0o500)  # root's own, for root: the commands' user is another
    uid = SANDBOX_UID if ROOT else os.geteuid()
    assert f"is not writable for uid {uid}, which runs the commands" in refused(workspace, environ)
