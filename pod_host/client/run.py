"""One leased run, on the channel that leased it (Harness API v5, section 2)."""

from __future__ import annotations

import logging
from typing import Any

from pod_host.client.channel import Channel, OnAnswer
from pod_host.contract.base import JsonObject, Sent
from pod_host.contract.output import OUTPUT_METHODS
from pod_host.contract.work import ReleaseParams, ReleaseReason, RenewResult, RunGrant, RunParams
from pod_host.errors import PodHostError, RuntimeRefusal

_log = logging.getLogger(__name__)
_OUTPUTS = frozenset(OUTPUT_METHODS.values())


class Run:
    """A run lives as long as its channel at most: any other connection is refused as ``run_not_held``.

    ``token`` is the current run token, for the gates; empty when the Runtime gave none.
    """

    def __init__(self, channel: Channel, grant: RunGrant) -> None:
        self.grant = grant
        self.token = grant.token or ""
        self._channel = channel
        self._over = False
        self._held = True  # whether the Runtime may still count the run as ours, so that a release means something

    @property
    def over(self) -> bool:
        """Whether nothing but a release may be sent for this run any more."""
        return self._over

    async def request(self, method: str, params: Sent) -> Any:
        """The method's result model. Raises RuntimeRefusal (``run_not_held`` once the run is over) and ChannelClosed."""
        if self._over:
            raise self._refusal(method)
        try:
            result = await self._channel.request(method, params)
        except RuntimeRefusal as refusal:
            self._hear(refusal)
            raise
        if method in _OUTPUTS:  # answered, so settled: the run is over at the Runtime
            self._over, self._held = True, False
        return result

    def post(self, method: str, params: JsonObject, on_answer: OnAnswer) -> None:
        """The same as `Channel.post`."""

        def heard(end: Any) -> None:
            self._hear(end)
            on_answer(end)

        if self._over:
            on_answer(self._refusal(method))
        else:
            self._channel.post(method, params, heard)

    async def renew(self) -> RenewResult:
        """Keep the run, and take its new token when one comes. ``ok`` false: the run is over. Raises as `request`."""
        result: RenewResult = await self.request("lease.renew", RunParams(run_id=self.grant.run_id))
        if result.token:
            self.token = result.token
        if not result.ok:
            self._over = True
        return result

    async def release(self, reason: ReleaseReason) -> None:
        """Give the run back without an output. Never raises: a run that cannot be released lapses by itself."""
        self._over = True
        if not self._held:
            return
        self._held = False
        try:
            await self._channel.request("lease.release", ReleaseParams(run_id=self.grant.run_id, reason=reason))
        except PodHostError as fault:
            _log.info("the run %s was not released: %s", self.grant.run_id, fault)

    def _refusal(self, method: str) -> RuntimeRefusal:
        return RuntimeRefusal("run_not_held", f"{method}: the run {self.grant.run_id} is over")

    def _hear(self, end: Any) -> None:
        """How a request ended may say that the run did."""
        if isinstance(end, RuntimeRefusal) and end.code == "run_not_held":
            self._over, self._held = True, False
