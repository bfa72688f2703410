"""The worker's start: what it may do shrinks step by step, and whatever it needs later is opened or imported before.

The order is fixed by the kernel: directories made and rules gathered as whoever started us, then the drop to the
commands' user, then no_new_privs, then the domain, which every thread and process from there on inherits.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pod_host.sandbox import cgroup, kernel
from pod_host.sandbox.landlock import SIGNALS_FROM_ABI, TRUNCATE_FROM_ABI, files_ruleset
from pod_host.sandbox.ripgrep import find_ripgrep
from pod_host.sandbox.seccomp import ARCHITECTURES
from pod_host.sandbox.tags import RLIMIT_LOCKS, NoRoomForTags, TagSpace

_INFINITY: Final = resource.RLIM_INFINITY
_MOST_DESCRIPTORS: Final = 1 << 20  # where there is no limit: the kernel has one of its own
_KEPT_DESCRIPTORS: Final = 1024
_CAP_SYS_RESOURCE: Final = 24
_LEAST_OVER_HOST: Final = 100  # of 1000: a tenth of the memory there is
_KEPT_IGNORED: Final = {signal.SIGPIPE, signal.SIGXFSZ}  # a write that fails tells us by its errno
_GIT_DEFAULTS: Final = """\
# Written once, as a default: git can name an author though the user has no entry in the password file.
[user]
\tname = Agent
\temail = agent@localhost
"""


class CannotStart(Exception):
    """A text for people, one line."""


@dataclass(frozen=True, slots=True)
class Settings:
    workspace: str
    home: str
    skills: str
    spool: str
    denied: list[str]
    allowed: list[str]
    readable: list[str]
    host_threads: list[int]
    uid: int | None
    landlock_abi: int | None
    seccomp: bool
    shells_ahead: int

    def written(self) -> list[str]:
        """What commands must be able to write, wherever it lies."""
        return [self.workspace, self.home, self.spool]

    def read_only(self) -> list[str]:
        """What commands read and do not write: the skills. Where they lie in what commands must be able to write, a rule for
        them would close that too, so there is none."""
        skills = os.path.realpath(self.skills)
        written = [os.path.realpath(path) for path in self.written()]
        apart = all(os.path.commonpath([skills, path]) not in (skills, path) for path in written)
        return [self.skills] if apart else []


@dataclass(frozen=True, slots=True)
class Confinement:
    """``abi``: the Landlock ABI in force (0: none). ``seccomp``: whether there are filters. ``held``: which of the
    properties "files", "signals" and "limits" hold. ``shares``: the controllers of the commands' cgroup. ``exposed``: a
    sentence for each thing that stays open."""

    abi: int
    seccomp: bool
    held: list[str]
    shares: list[str]
    exposed: list[str]


def reset_signals() -> None:
    """Dispositions and mask as a fresh process has them, whatever the host was started with."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP} - _KEPT_IGNORED:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


@dataclass(frozen=True, slots=True)
class Started:
    confinement: Confinement
    space: TagSpace
    ripgrep: str | None
    ripgrep_descriptor: int | None
    descriptors: tuple[int, int]  # commands' soft and hard RLIMIT_NOFILE
    leaf: cgroup.Leaf | None  # of the commands, where a cgroup is delegated


def confine(settings: Settings) -> Started:
    """From whoever started us to the confined worker. Raises ``CannotStart``."""
    os.umask(0o022)
    os.chdir("/")
    uid = settings.uid if settings.uid is not None and os.geteuid() == 0 else None
    for path, mode in ((settings.workspace, 0o755), (settings.home, 0o755), (settings.spool, 0o700)):
        _make_directory(path, mode, uid)
    with contextlib.suppress(CannotStart):  # not every Agent has skills; mounting one then says what is wrong
        _make_directory(settings.skills, 0o755, uid)
    ripgrep = find_ripgrep()
    descriptor = os.open(ripgrep, os.O_RDONLY | os.O_CLOEXEC) if ripgrep else None
    abi = kernel.landlock_abi()
    if settings.landlock_abi is not None:
        abi = min(abi, settings.landlock_abi)
    needed = [*settings.allowed, *settings.written(), settings.skills]
    programs = [descriptor] if descriptor is not None else []
    leaf = cgroup.prepare(uid)
    groups = cgroup.mounts() if leaf else []  # nobody changes his share, the file tools neither
    denied, readable = [*settings.denied, *groups], [*settings.readable, *groups]
    ruleset = files_ruleset(abi, denied, needed, readable, programs) if abi else None
    descriptors = _set_limits()
    if uid is not None:
        _set_least_oom_score()
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.become_undumpable()
    kernel.become_subreaper()
    if ruleset is not None:
        kernel.landlock_restrict(ruleset)
        os.close(ruleset)
    _check_reach(settings)
    _write_git_defaults(settings.home)
    try:
        space = TagSpace.within_own_limits()
    except NoRoomForTags as error:
        raise CannotStart(str(error)) from error
    seccomp = settings.seccomp and kernel.seccomp_available() and kernel.MACHINE in ARCHITECTURES
    confinement = _describe(abi, seccomp, settings.denied, leaf)
    return Started(confinement, space, str(ripgrep) if ripgrep else None, descriptor, descriptors, leaf)


def _make_directory(path: str, mode: int, uid: int | None) -> None:
    """Makes it for the commands' user when it is missing; one that is there is left as it is."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkdir(path, mode)
        if uid is not None:
            os.chown(path, uid, uid)
    except FileExistsError:
        if not os.path.isdir(path):
            raise CannotStart(f"{path} is not a directory.") from None
    except OSError as error:
        raise CannotStart(f"Could not make {path}: {error.strerror}.") from error


def _check_reach(settings: Settings) -> None:
    for path in settings.written():
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise CannotStart(f"{path} is not writable for uid {os.getuid()}, which commands run as.")


def _set_limits() -> tuple[int, int]:
    """Ours; and for commands, soft and hard RLIMIT_NOFILE. The hard one is below our own: what a user's processes have in
    flight in sockets is counted together, and held against the limit of whoever sends next, us among them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = _MOST_DESCRIPTORS if hard == _INFINITY else hard
    soft = hard if soft == _INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # five for each command
    theirs = hard - min(_KEPT_DESCRIPTORS, hard // 4)
    for which in (resource.RLIMIT_RSS, RLIMIT_LOCKS):
        with contextlib.suppress(ValueError, OSError):  # only root may raise them; tags fit under lower ones too
            resource.setrlimit(which, (_INFINITY, _INFINITY))
    return min(soft, theirs), theirs


def _set_least_oom_score() -> None:
    """No command shall reset its score to the host's. What a process that may lower scores writes is a floor for all that
    comes of it; what any other writes is none, and would only put us before the host."""
    with open("/proc/self/status", "rb") as status:
        (capabilities,) = [int(line.split()[1], 16) for line in status if line.startswith(b"CapEff:")]
    if capabilities >> _CAP_SYS_RESOURCE & 1:
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+b", buffering=0) as file:
            own = int(file.read())
            file.seek(0)
            file.write(b"%d" % min(1000, own + _LEAST_OVER_HOST))


def _write_git_defaults(home: str) -> None:
    """The lowest of git's per-user files: the user's own `git config --global` and every repository override it."""
    if os.path.lexists(f"{home}/.gitconfig") or os.path.lexists(f"{home}/.config/git/config"):
        return
    with contextlib.suppress(OSError):  # a comfort
        os.makedirs(f"{home}/.config/git", exist_ok=True)
        with open(f"{home}/.config/git/config", "x", encoding="utf-8") as file:
            file.write(_GIT_DEFAULTS)


def _describe(abi: int, seccomp: bool, denied: Sequence[str], leaf: cgroup.Leaf | None) -> Confinement:
    exposed = []
    hidden = ", ".join(denied) or "nothing"
    if abi == 0:
        exposed.append(f"The kernel has no Landlock: commands can read what uid {os.getuid()} may read ({hidden}).")
    if abi == 1:
        exposed.append("Landlock ABI 1: renames and links across directories fail in commands.")
    if 0 < abi < TRUNCATE_FROM_ABI:
        exposed.append(
            "Landlock does not know truncate(2) (ABI below 3): seccomp refuses that call to commands altogether."
            if seccomp
            else "Landlock does not know truncate(2) (ABI below 3): commands can empty hidden files that their user owns."
        )
    if abi < SIGNALS_FROM_ABI:
        exposed.append(
            "Landlock does not scope signals (ABI below 6): host and worker are guarded by seccomp alone, and abstract "
            "sockets of other processes are open to commands."
            if seccomp
            else "Landlock does not scope signals (ABI below 6), and nothing else does: commands can end host and worker "
            "by a signal, and connect to abstract sockets of other processes."
        )
    if not seccomp:
        exposed.append(
            "The kernel takes no seccomp filters: commands can set limits, priorities and processors of host and worker, "
            "and so slow them or, by a CPU limit, end them."
        )
    if leaf is not None and not (abi and seccomp) and leaf.writable_by(os.getuid()):
        exposed.append(
            "Commands have a cgroup of their own, and can leave it, since their user owns it: "
            + ("the kernel has no Landlock." if abi == 0 else "clone3 can place a process, and no seccomp refuses it.")
        )
    held = {"files": abi >= 1, "signals": abi >= SIGNALS_FROM_ABI, "limits": seccomp}
    shares = leaf.controllers if leaf else []
    return Confinement(abi, seccomp, [name for name, holds in held.items() if holds], shares, exposed)
