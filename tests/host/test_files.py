"""The host's own small files: whole or as they were on a full disk, and opened again when a command closed them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pod_host.host import files


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """With ``kept`` on it, and not a byte of room."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=False)
    if mounted.returncode != 0:
        pytest.skip("no tmpfs that we may mount")
    (tmp_path / "kept").write_bytes(b"old")
    with open(tmp_path / "filler", "wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.mark.parametrize("durable", [False, True])
def test_a_full_disk_costs_no_old_content_and_leaves_no_half_file(full_disk: Path, durable: bool) -> None:
    for name in ("kept", "other"):
        with pytest.raises(OSError, match="No space left on device"):
            files.replace(full_disk / name, bytes(10_000), 0o600, durable=durable)
    assert sorted(os.listdir(full_disk)) == ["filler", "kept"]
    assert files.read_small(full_disk / "kept", 100) == b"old"
    (full_disk / "filler").unlink()
    files.replace(full_disk / "kept", b"new", 0o600, durable=durable)
    assert (full_disk / "kept").read_bytes() == b"new"


def test_what_was_closed_is_opened_again_for_us(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    path = tmp_path / "own" / "file"
    path.write_bytes(b"content")
    path.chmod(0)
    path.parent.chmod(0)
    files.reclaim(path)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    assert files.read_small(path, 100) == b"content"
    files.reclaim(tmp_path / "own" / "missing")
