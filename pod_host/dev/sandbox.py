"""The Agent's one sandbox: who may be its host, and on which volume (Harness API v5, section 9).

Every join moves the epoch and so fences the host before it: that one's tokens stop working and its connections are
closed. The first volume id that a join names is the sandbox's for good; another one, or none, means that the disk is
lost.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pod_host.contract.base import JsonObject
from pod_host.contract.hosting import HostJoinRequest
from pod_host.dev.authority import EGRESS, HOST, Authority, TokenRefused, write_private
from pod_host.dev.config import RuntimeConfig
from pod_host.dev.database import Database
from pod_host.dev.record import Record, iso
from pod_host.errors import PodHostError

JOIN_FILE: Final = "join-token"


class HostRefused(PodHostError):
    """A join or renewal that is refused. The reason is for the record; the host is told nothing of it."""

    code = "unauthorized"


@dataclass(frozen=True)
class Host:
    """A host as its token names it."""

    epoch: int
    pod_uid: str


class Sandbox:
    def __init__(self, config: RuntimeConfig, db: Database, record: Record, authority: Authority) -> None:
        self._config = config
        self._db = db
        self._record = record
        self._authority = authority
        self.join_file: Path = config.join_token_file or config.state_dir / JOIN_FILE
        self.on_epoch: Callable[[], None] = lambda: None
        with db.transaction():
            for name, value in (("sandboxId", f"sbx_{secrets.token_hex(8)}"), ("joinToken", secrets.token_urlsafe(32))):
                if db.get(name) is None:
                    db.set(name, value)
            if config.sandbox_id is not None:
                db.set("sandboxId", config.sandbox_id)
        self.id: str = db.get("sandboxId")
        if config.join_token_file is None:
            # The host reads it as the user that started the Runtime; commands, as another uid or behind Landlock, must not.
            write_private(self.join_file, f"{db.get('joinToken')}\n".encode())

    @property
    def epoch(self) -> int:
        """0: nobody has joined yet."""
        return int(self._db.get("epoch") or 0)

    @property
    def pod_uid(self) -> str | None:
        uid: str | None = self._db.get("podUid")
        return uid

    def join(self, request: HostJoinRequest) -> JsonObject:
        """The answer to a join (HostJoinAnswer). Raises HostRefused."""
        if request.sandbox_id != self.id:
            raise HostRefused(f"no sandbox {request.sandbox_id}")
        if not hmac.compare_digest(_digest(request.join_token), _digest(self._join_token())):
            raise HostRefused("the join token is not the sandbox's")
        if self._db.get("lost"):
            raise HostRefused(
                "the sandbox is lost: its volume was replaced; start the Runtime on a fresh state directory"
            )
        recorded = self._db.get("volumeId")
        if recorded is not None and recorded != request.volume_id:
            with self._db.transaction():
                self._db.set("lost", True)
                self._record.add("sandbox.lost", volumeId=recorded, joinedWith=request.volume_id)
            raise HostRefused(f"the volume was replaced: {recorded} is recorded, {request.volume_id} came")
        first = recorded is None and request.volume_id is not None
        with self._db.transaction():
            before = self.pod_uid
            self._db.set("epoch", self.epoch + 1)
            self._db.set("podUid", request.pod_uid)
            if first:
                self._db.set("volumeId", request.volume_id)
            self._record.add("host.joined", epoch=self.epoch, podUid=request.pod_uid, volumeId=request.volume_id)
            if before != request.pod_uid:
                self._record.add("sandbox.relaunched" if before else "sandbox.running", podUid=request.pod_uid)
            self._db.after_commit(self.on_epoch)
        return self._answer() | self._setup()

    def renew(self, token: str) -> JsonObject:
        """A fresh pair of tokens of the same epoch. Raises HostRefused."""
        try:
            self.verify(token)
        except TokenRefused as fault:
            raise HostRefused(str(fault)) from None
        return self._answer()

    def verify(self, token: str) -> Host:
        """The host of a current host token. Raises TokenRefused."""
        return self._current(self._authority.check(HOST, token))

    def verify_egress(self, token: str) -> Host:
        """Likewise for the egress proxy's. Raises TokenRefused."""
        return self._current(self._authority.check(EGRESS, token))

    def leased_on_volume(self) -> None:
        """The host asked for a run: what setup there was for this volume is behind it."""
        if not self._db.get("setupDone"):
            self._db.set("setupDone", True)

    def _current(self, claims: JsonObject) -> Host:
        if claims.get("sbx") != self.id:
            raise TokenRefused("the token is another sandbox's")
        if self._db.get("lost"):
            raise TokenRefused("the sandbox is lost")
        if claims.get("epc") != self.epoch or claims.get("pod") != self.pod_uid:
            raise TokenRefused("the token is of a host before this one")
        return Host(self.epoch, str(self.pod_uid))

    def _join_token(self) -> str:
        """From the file that was named, each time: a Secret may be rotated while we run."""
        if self._config.join_token_file is None:
            return str(self._db.get("joinToken"))
        try:
            token = self.join_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as fault:
            raise HostRefused(f"the join token's file cannot be read: {fault}") from None
        if not token:
            raise HostRefused("the join token's file is empty")
        return token

    def _answer(self) -> JsonObject:
        life = self._config.times.token
        claims: JsonObject = {"sbx": self.id, "epc": self.epoch, "pod": self.pod_uid}
        host_token, expires = self._authority.mint(HOST, {**claims, "sub": self.id}, life)
        egress_token, _ = self._authority.mint(EGRESS, claims, life)
        return {
            "hostToken": host_token,
            "egressToken": egress_token,
            "sandboxId": self.id,
            "epoch": self.epoch,
            "expiresAt": iso(expires),
            "caCertificate": self._authority.ca_certificate,
        }

    def _setup(self) -> JsonObject:
        """``setup`` goes with every join until a lease shows that the host is done with it: a host that died in the
        middle, or whose answer was lost, gets it again."""
        if self._db.get("setupDone"):
            return {}
        if self._config.seeded:
            return {"seeded": True}
        return {"setup": self._config.agent.setup} if self._config.agent.setup is not None else {}


def pod_workspace_key(tenant_id: str, sandbox_id: str) -> str:
    """The key of a pod's workspace in a ``sandbox.state`` record (section 10)."""
    return f"nylorun-{tenant_id}-sbx-{hashlib.sha256(sandbox_id.encode()).hexdigest()[:16]}"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
