"""Which cgroup is ours to divide, and what commands may have of it. The kernel's part is in tests/attack/test_cgroup.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pod_host import limits
from pod_host.sandbox.cgroup import CONTROLLERS, Cgroup, delegated, mounts, own_cgroup, shares

MIB = 1 << 20
V1 = "31 25 0:27 / {v1} rw,relatime shared:10 - cgroup cgroup rw,memory\n"
V2 = "30 25 0:26 {root} {mount} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


def proc(directory: Path, own: str, *mounted: str) -> str:
    """A /proc/self of which two files are read."""
    (directory / "cgroup").write_text(own)
    (directory / "mountinfo").write_text("".join(mounted))
    return str(directory)


def group(directory: Path, path: str = "/", **files: str) -> Cgroup:
    """One that looks as the kernel's do, but for its being on a disk."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in {"cgroup_type": "domain", **files}.items():
        (directory / name.replace("_", ".")).write_text(f"{text}\n")
    return Cgroup(path, str(directory), str(directory))


@pytest.mark.parametrize(
    ("own", "root", "expected"),
    [
        ("0::/\n", "/", "/mnt"),
        ("0::/a/b.service\n", "/", "/mnt/a/b.service"),
        ("4:memory:/x\n1:name=systemd:/y\n0::/a\n", "/", "/mnt/a"),
        ("0::/a/b\n", "/a", "/mnt/b"),  # a part of the hierarchy is mounted
        ("0::/a\n", "/a", "/mnt"),
        ("0::/ab\n", "/a", None),
        ("0::/../b\n", "/", None),  # outside of our namespace
        ("4:memory:/x\n", "/", None),  # version 1 alone
        ("", "/", None),
    ],
)
def test_where_ours_is_mounted(tmp_path: Path, own: str, root: str, expected: str | None) -> None:
    found = own_cgroup(proc(tmp_path, own, V1.format(v1="/mnt1"), V2.format(root=root, mount="/mnt")))
    assert (found and found.directory) == expected


def test_without_a_mount_or_without_proc_there_is_none(tmp_path: Path) -> None:
    assert own_cgroup(proc(tmp_path, "0::/a\n", V1.format(v1="/mnt1"))) is None
    assert own_cgroup(str(tmp_path / "nothing")) is None


def test_odd_names_of_mounts_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    told = proc(tmp_path, "0::/a\n", V2.format(root="/", mount="/mnt/a\\040b"), V2.format(root="/a", mount="/other"))
    found = own_cgroup(told)
    assert found == Cgroup("/a", "/mnt/a b/a", "/mnt/a b")
    assert mounts(told) == ["/mnt/a b", "/other"], "each is a way to the same files"


def test_a_containers_own_is_delegated_and_any_other_is_not(tmp_path: Path) -> None:
    own = group(tmp_path / "own")
    assert delegated(own) == own
    assert delegated(group(tmp_path / "service", "/system.slice/a.service")) is None, "root may write there: no more"


def test_the_machines_own_root_is_not_ours(tmp_path: Path) -> None:
    own = group(tmp_path / "root")
    (tmp_path / "root" / "cgroup.type").unlink()  # the kernel gives it none
    assert delegated(own) is None


def test_a_threaded_one_cannot_be_divided(tmp_path: Path) -> None:
    assert delegated(group(tmp_path / "own", cgroup_type="threaded")) is None


def test_the_mark_of_a_service_manager_delegates(tmp_path: Path) -> None:
    own = group(tmp_path / "service", "/system.slice/a.service")
    try:
        os.setxattr(own.directory, "user.delegate", b"0")
    except OSError:
        pytest.skip("a file system without attributes")
    assert delegated(own) is None
    os.setxattr(own.directory, "user.delegate", b"1")
    assert delegated(own) == own


def test_a_worker_that_starts_where_we_were_moved_finds_the_same_base(tmp_path: Path) -> None:
    base = group(tmp_path / "service", "/system.slice/a.service")
    moved = group(tmp_path / "service" / "host", "/system.slice/a.service/host")
    assert delegated(moved) is None, "somebody else's, of that name"
    group(tmp_path / "service" / "commands")
    found = delegated(moved)
    assert found is not None
    assert (found.directory, found.path) == (base.directory, base.path)


def test_host_and_worker_keep_a_reserve_of_each_limit(tmp_path: Path) -> None:
    base = group(tmp_path / "base", memory_max=str(1024 * MIB), memory_high="max", pids_max="1000")
    wanted = dict(shares(base, CONTROLLERS))
    assert int(wanted["memory.max"]) == 1024 * MIB - limits.HOST_MEMORY_BYTES
    assert int(wanted["pids.max"]) == 1000 - limits.HOST_TASKS
    assert wanted["memory.oom.group"] == "0"
    assert wanted["cpu.weight"] == str(limits.COMMANDS_WEIGHT)


def test_of_a_small_limit_a_quarter_is_kept(tmp_path: Path) -> None:
    base = group(tmp_path / "base", memory_max=str(400 * MIB), pids_max="100")
    wanted = dict(shares(base, CONTROLLERS))
    assert (wanted["memory.max"], wanted["pids.max"]) == (str(300 * MIB), "75")


def test_where_nothing_is_limited_memory_is_not_and_processes_are(tmp_path: Path) -> None:
    wanted = dict(shares(group(tmp_path / "base", memory_max="max", pids_max="max"), CONTROLLERS))
    assert "memory.max" not in wanted
    assert wanted["pids.max"] == str(limits.COMMANDS_TASKS)


def test_the_least_limit_counts_whoever_set_it(tmp_path: Path) -> None:
    group(tmp_path, memory_max=str(2048 * MIB), pids_max="max")
    base = group(tmp_path / "base", "/base", memory_max="max", memory_high=str(800 * MIB), pids_max="max")
    wanted = dict(shares(Cgroup("/base", base.directory, str(tmp_path)), CONTROLLERS))
    assert wanted["memory.max"] == str(800 * MIB - limits.HOST_MEMORY_BYTES), (
        "above the high mark the host is slowed too"
    )
    (tmp_path / "memory.max").write_text(str(400 * MIB))
    wanted = dict(shares(Cgroup("/base", base.directory, str(tmp_path)), CONTROLLERS))
    assert wanted["memory.max"] == str(300 * MIB)


def test_without_a_controller_its_files_are_let_be(tmp_path: Path) -> None:
    base = group(tmp_path / "base", memory_max=str(1024 * MIB), pids_max="1000")
    assert shares(base, []) == []
    assert [name for name, _ in shares(base, ["pids"])] == ["pids.max"]
