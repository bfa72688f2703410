"""The volume's id: made once, kept for good, never made anew in place of one that cannot be read."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from pod_host.errors import VolumeIdError
from pod_host.host.volume_id import read_or_make

as_a_user = pytest.mark.skipif(os.geteuid() == 0, reason="root reads and writes whatever the mode")


def test_it_is_made_once_and_then_read(tmp_path: Path) -> None:
    made = read_or_make(tmp_path)
    file = tmp_path / "volume-id"
    assert file.read_text() == f"{made}\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert uuid.UUID(made).version == 4
    assert read_or_make(tmp_path) == made
    assert os.listdir(tmp_path) == ["volume-id"]


def test_a_volume_that_has_gone_gets_no_new_id(tmp_path: Path) -> None:
    with pytest.raises(VolumeIdError, match="cannot be written"):
        read_or_make(tmp_path / "gone")
    assert os.listdir(tmp_path) == []


def test_an_id_of_another_form_of_the_contract_is_kept(tmp_path: Path) -> None:
    (tmp_path / "volume-id").write_text("  volume-7 \n\n")
    assert read_or_make(tmp_path) == "volume-7"


@pytest.mark.parametrize("content", [b"", b"\n", b"two words", b"\xff\xfe", b"x" * 65, b"x" * 10_000])
def test_a_malformed_id_is_an_error_and_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "volume-id"
    file.write_bytes(content)
    with pytest.raises(VolumeIdError, match="volume-id"):
        read_or_make(tmp_path)
    assert file.read_bytes() == content


def test_a_directory_or_a_fifo_or_a_link_in_its_place_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "volume-id"
    file.mkdir()
    with pytest.raises(VolumeIdError):
        read_or_make(tmp_path)
    file.rmdir()
    os.mkfifo(file)
    with pytest.raises(VolumeIdError):
        read_or_make(tmp_path)
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(VolumeIdError):
        read_or_make(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


@as_a_user
def test_an_id_that_was_made_unreadable_is_taken_back_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "volume-id"
    file.write_text("volume-7\n")
    file.chmod(0)
    assert read_or_make(tmp_path) == "volume-7"
    assert file.read_text() == "volume-7\n"


def test_what_a_crash_left_beside_it_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / ".volume-id.new").write_text("half")
    made = read_or_make(tmp_path)
    assert (tmp_path / "volume-id").read_text() == f"{made}\n"
