"""The host's credentials: joined for, renewed, measured, dropped (Harness API v5, section 9).

The tokens live in memory alone. A join fences whoever joined before, so a host with a living token renews and never joins.

How long a token lives is told by its own claims, ``exp`` less ``iat``: both are the Runtime's clock, so a wall clock here
that is hours off does not matter. From the moment the request left, that life is counted on a clock that neither jumps nor
stops.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from pod_host import limits
from pod_host.client import retry
from pod_host.contract.hosting import HostJoinAnswer, HostJoinRequest
from pod_host.errors import JoinRefused, JoinUnavailable, VolumeIdError
from pod_host.host import clock, files
from pod_host.host.log import get_log, redactor
from pod_host.host.volume_id import read_or_make
from pod_host.settings import Settings

LIFE_SECONDS = 15 * 60.0  # what a token lives when nothing that makes sense is told
JOIN_TOKEN_CHARACTERS = 512  # HostJoinRequest's own limit
JOIN_FILE_BYTES = 64 * 1024  # read of the join file: a token in spaces is one still

log = get_log()


class HostJoining(Protocol):
    """The two requests of `pod_host.client.HostApi` that are used here."""

    async def join(self, request: HostJoinRequest) -> HostJoinAnswer: ...
    async def renew(self, host_token: str) -> HostJoinAnswer: ...


@dataclass(frozen=True, slots=True)
class Held:
    """One answer's tokens. ``came_at``, ``ends_at``: on `clock.boottime`."""

    host_token: str
    egress_token: str
    epoch: int
    came_at: float
    ends_at: float

    @property
    def alive(self) -> bool:
        return clock.boottime() < self.ends_at


class Credentials:
    """``joined``: gets every answer of a join, which may carry the Agent's setup; ``answered``: every answer, of a join
    or a renewal. ``refused``: a renewal was refused, so whatever the old token opened is over."""

    def __init__(
        self,
        settings: Settings,
        api: HostJoining,
        *,
        joined: Callable[[HostJoinAnswer], Awaitable[None]],
        answered: Callable[[HostJoinAnswer], None],
        refused: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._api = api
        self._joined = joined
        self._answered = answered
        self._refused = refused
        self._held: Held | None = None
        self._asking = asyncio.Lock()  # a join beside a renewal would fence the tokens that the renewal brings
        self._due = math.inf  # the next renewal, on `clock.boottime`
        self._failures = 0  # renewals in a row that got no answer

    @property
    def held(self) -> Held | None:
        return self._held

    @property
    def due(self) -> float:
        """When the tokens are renewed next, on `clock.boottime`; infinite without any."""
        return self._due

    @property
    def egress_token(self) -> str | None:
        return self._held.egress_token if self._held else None

    async def ready(self) -> str:
        """A host token to connect with: the one held, renewed; else a new one, joined for, however long that takes.

        A renewal that gets no answer leaves the token as it is while it lives: a join would fence."""
        async with self._asking:
            if self._held is not None:
                await self._renew(self._held)
            if self._held is None or not self._held.alive:
                self._held = await self._join()
            return self._held.host_token

    async def keep_fresh(self) -> None:
        """Renew in time, for good: every ``renew_seconds``, sooner after a failure. Never returns."""
        look = min(clock.LOOK_SECONDS, self._settings.renew_seconds)
        while True:
            await clock.sleep_until(lambda: self._due, look)
            async with self._asking:
                if self._held is not None and self._due <= clock.boottime():
                    await self._renew(self._held)

    def drop(self) -> None:
        """The tokens are not good any more: the next `ready` joins."""
        self._held = None
        self._due = math.inf

    # --- one request --------------------------------------------------------------------------------------------------

    async def _renew(self, held: Held) -> None:
        asked_at = clock.boottime()
        try:
            answer = await self._api.renew(held.host_token)
        except JoinRefused as refusal:
            log.warning("renew.refused", status=refusal.status, reason=str(refusal))
            self.drop()
            self._refused()
        except JoinUnavailable as fault:
            waits = limits.RENEW_RETRY_SECONDS
            self._due = clock.boottime() + waits[min(self._failures, len(waits) - 1)]
            self._failures += 1
            log.warning("renew.unavailable", reason=str(fault))
        else:
            self._held = self._take(answer, asked_at)
            log.info("renew.done", epoch=answer.epoch)

    async def _join(self) -> Held:
        attempts = retry.without_end(
            JoinRefused,
            JoinUnavailable,
            VolumeIdError,
            first=limits.JOIN_BACKOFF_FIRST_SECONDS,
            most=limits.JOIN_BACKOFF_MOST_SECONDS,
            tell=_tell_failed_join,
        )
        return await attempts(self._join_once)

    async def _join_once(self) -> Held:
        join_token = read_join_token(self._settings.join_file)
        redactor.hold(join_token)
        volume_id = await asyncio.to_thread(read_or_make, self._settings.harness_dir)
        request = HostJoinRequest(
            sandbox_id=self._settings.sandbox_id,
            pod_uid=self._settings.pod_uid,
            join_token=join_token,
            volume_id=volume_id,
        )
        asked_at = clock.boottime()
        answer = await self._api.join(request)
        held = self._take(answer, asked_at)
        log.info("join.done", epoch=answer.epoch, sandboxId=answer.sandbox_id)
        await self._joined(answer)
        return held

    def _take(self, answer: HostJoinAnswer, asked_at: float) -> Held:
        redactor.hold(answer.host_token)
        redactor.hold(answer.egress_token)
        self._failures = 0
        self._due = asked_at + self._settings.renew_seconds
        self._answered(answer)
        return Held(
            host_token=answer.host_token,
            egress_token=answer.egress_token,
            epoch=answer.epoch,
            came_at=asked_at,
            ends_at=asked_at + life_seconds(answer.host_token, answer.expires_at),
        )


def _tell_failed_join(fault: BaseException) -> None:
    if isinstance(fault, JoinRefused):
        log.warning("join.refused", status=fault.status, reason=str(fault))
    else:
        log.warning("join.unavailable", reason=str(fault))


def read_join_token(path: Path) -> str:
    """The join file's text, trimmed: read afresh at each join, for a reset writes another. Raises JoinUnavailable: the
    Secret may be mounted late, and is swapped by moving a link."""
    try:
        token = files.read_small(path, JOIN_FILE_BYTES, follow=True).decode().strip()
    except FileNotFoundError:
        raise JoinUnavailable(f"the join file {path} is not there yet") from None
    except OSError as fault:
        raise JoinUnavailable(f"the join file {path} cannot be read: {fault.strerror or fault}") from None
    except UnicodeDecodeError:
        raise JoinUnavailable(f"the join file {path} holds no text") from None
    if not token:
        raise JoinUnavailable(f"the join file {path} is empty")
    if len(token) > JOIN_TOKEN_CHARACTERS:
        raise JoinUnavailable(f"the join file {path} holds more than {JOIN_TOKEN_CHARACTERS} characters")
    return token


def life_seconds(token: str, expires_at: datetime) -> float:
    """How long a token lived when it was made: by its claims; where it has none, by ``expires_at`` and our own wall
    clock, unless the two make no sense together; else the life that every token of the Runtime has."""
    told = _claimed_life(token)
    if told is not None:
        return told
    if expires_at.tzinfo is None:
        expires_at = expires_at.replace(tzinfo=UTC)
    left = (expires_at - datetime.now(UTC)).total_seconds()
    return left if 0 < left <= LIFE_SECONDS else LIFE_SECONDS


def _claimed_life(token: str) -> float | None:
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        life = float(claims["exp"] - claims["iat"])
    except (binascii.Error, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return life if 0 < life < math.inf else None
