"""Bytes to the Runtime: join and renew, the WebSocket channel, leased runs, the gates (Harness API v5)."""

from pod_host.client.channel import Channel, OnAnswer, OnMessage
from pod_host.client.gates import Gates
from pod_host.client.join import HostApi
from pod_host.client.room import Claim, Room
from pod_host.client.run import Run
from pod_host.client.serving import OnRequest, Served
from pod_host.client.tls import runtime_tls

__all__ = [
    "Channel",
    "Claim",
    "Gates",
    "HostApi",
    "OnAnswer",
    "OnMessage",
    "OnRequest",
    "Room",
    "Run",
    "Served",
    "runtime_tls",
]
