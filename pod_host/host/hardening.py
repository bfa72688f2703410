"""What the host process does to itself before it holds anything: nobody of its user may look into it or trace it.

And which paths the sandbox may not touch.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pod_host.host.trust import DIRECTORY as TRUST
from pod_host.sandbox import SandboxConfig, kernel
from pod_host.settings import Settings

HOME = "home"  # of the commands, in the harness directory
SPOOL = Path("/tmp/pod-host")  # whole outputs, for the model to read on
NOBODYS_HOMES = (
    Path("/"),
    Path("/nonexistent"),
    Path("/tmp"),
    Path("/var/tmp"),
)  # of users that have none of their own


def harden() -> None:
    """No memory, environment or descriptors for other processes of our user, no core dumps, no new privileges for what we
    start, and orphans come to us: should the worker die, what it left can be found and ended."""
    kernel.become_undumpable()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.become_subreaper()


def sandbox_config(settings: Settings) -> SandboxConfig:
    """The worker's settings: where it works, and what it is kept out of."""
    uid = settings.sandbox_uid if os.geteuid() == 0 else os.geteuid()
    paths = sandbox_paths(settings, () if settings.in_cluster else starter_homes(settings))
    return SandboxConfig(
        workspace=settings.workspace_dir,
        home=settings.harness_dir / HOME,
        skills=settings.skills_dir,
        spool=SPOOL if settings.in_cluster else Path(f"{SPOOL}-{uid}"),  # outside a pod, users share /tmp
        denied=paths.denied,
        allowed=paths.allowed,
        readable=paths.readable,
        uid=settings.sandbox_uid,
        shells_ahead=settings.shells_ahead,
        require=settings.required_confinement,
    )


@dataclass(frozen=True, slots=True)
class SandboxPaths:
    """``denied``: what the worker and every command are kept out of. ``allowed``: what they may use inside of it.
    ``readable``: what they may read there."""

    denied: tuple[Path, ...]
    allowed: tuple[Path, ...]
    readable: tuple[Path, ...]


def sandbox_paths(settings: Settings, starter_homes: Iterable[Path]) -> SandboxPaths:
    """The join token's directory and the host's own files are denied, but for the commands' HOME and the CA bundle.

    ``starter_homes``: the home directories of whoever started the host. Outside a cluster they hold a person's keys, so they
    are denied too, the workspace and the skills excepted; in a pod there are none: what is there is the image's, for
    commands to use.
    """
    harness = settings.harness_dir
    allowed = [harness / HOME]
    denied = [_hiding_join_token(settings), harness]
    homes = [home for home in starter_homes if home not in (*NOBODYS_HOMES, harness / HOME)]
    if homes:
        denied += homes
        allowed += [settings.workspace_dir, settings.skills_dir]
    return SandboxPaths(tuple(denied), tuple(allowed), (harness / TRUST,))


def temporary_directory(config: SandboxConfig) -> Path | None:
    """Where commands put their temporary files when not in /tmp; None where that is open to them, as in every pod. Nothing
    can be made directly in a directory on the way to what is hidden or read-only."""
    closing = (*config.denied, config.skills)
    return config.home if any(path.resolve().is_relative_to("/tmp") for path in closing) else None


def _hiding_join_token(settings: Settings) -> Path:
    """The token's directory: a Secret is mounted as one, and swaps what is in it. The file alone where its directory holds
    what commands need."""
    directory = settings.join_file.parent
    needed = (settings.workspace_dir, settings.skills_dir, settings.harness_dir / HOME, SPOOL)
    return settings.join_file if any(path.is_relative_to(directory) for path in needed) else directory


def starter_homes(settings: Settings) -> tuple[Path, ...]:
    """HOME, and the user database's: the two differ where somebody set HOME, and where the user has no entry."""
    homes = [settings.home] if settings.home else []
    with contextlib.suppress(KeyError):  # no entry, as in most pods
        homes.append(Path(pwd.getpwuid(os.geteuid()).pw_dir))
    return tuple(dict.fromkeys(homes))
