"""Joining and renewing: ``POST /nylorun/harness/v1/host/join`` and ``…/host/renew`` (Harness API v5, section 9)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from pod_host.contract.base import Json, Moment, Received, Sent, Text1, Token

HARNESS_PATH = "/nylorun/harness/v1"
JOIN_PATH = HARNESS_PATH + "/host/join"
RENEW_PATH = HARNESS_PATH + "/host/renew"
TRANSPORT_HEADER = "Nylorun-Harness-Api"

PodUid = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")]
VolumeId = PodUid


class HostJoinRequest(Sent):
    sandbox_id: Annotated[str, Field(min_length=1, max_length=512)]
    pod_uid: PodUid
    join_token: Annotated[str, Field(min_length=1, max_length=512)] = Field(repr=False)
    volume_id: VolumeId | None = None


class HostJoinAnswer(Received):
    """``setup`` is any JSON here: its shape is an open point (`open_points.read_setup`). Both tokens end at
    ``expires_at``. ``ca_certificate`` is one PEM certificate, the egress proxy's."""

    any_json: ClassVar[frozenset[str]] = frozenset()
    host_token: Token = Field(repr=False)
    egress_token: Token = Field(repr=False)
    sandbox_id: Text1
    epoch: Annotated[int, Field(gt=0)]
    expires_at: Moment
    ca_certificate: str = ""
    setup: Json = None
    seeded: bool = False
