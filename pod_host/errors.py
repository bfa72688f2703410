"""Every error that pod_host raises on purpose, as one tree.

    PodHostError
      ConfigurationError        the environment or a file that it names is wrong        exit 78
      NetworkGateError          the pod's network policy never came into force          exit 75
      ContractViolation         a peer sent, or we were about to send, what the contract forbids
      RuntimeRefusal            the Runtime answered a request with an error code (Harness API v5, section 1)
        ChannelClosed           the connection went while we waited: code ``unavailable``
      JoinRefused               host/join or host/renew was answered 400 or 401
      JoinUnavailable           host/join or host/renew got no usable answer: try again
      ConnectRefused            the WebSocket upgrade was answered with a status: 401, 404, 421, 426, 503
      VolumeIdError             the volume-id file is there and cannot be used: never make another
      GateRefusal               a gate answered with an error body (section 5)
      GateUnavailable           a gate's answer never came: the same key may be sent again
      SandboxError              the sandbox could not run a call
        WorkerLost              the worker process died while the call ran: what it did is unknown
        ConfinementMissing      the kernel lacks a protection that was required
        InvalidToolInput        a sandbox tool was called with what it does not take
      AgentFileError            an agent file (pod-host dev) is malformed

Each class has a stable ``code``; what crosses a wire or a log is built from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class PodHostError(Exception):
    """Root of the tree. ``code`` is stable and safe to match on; the text is for people."""

    code: str = "internal"


class ConfigurationError(PodHostError):
    """One or more settings are wrong. ``faults`` holds one line each, every line naming its variable."""

    code = "configuration"

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


class NetworkGateError(PodHostError):
    code = "network_gate"


class ContractViolation(PodHostError):
    """A message that Harness API v5 forbids. The text names the member at fault."""

    code = "invalid"


class RuntimeRefusal(PodHostError):
    """The Runtime answered ``ok: false``. ``code`` is one of HARNESS_ERROR_CODES (section 1)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class ChannelClosed(RuntimeRefusal):
    def __init__(self, reason: str) -> None:
        super().__init__("unavailable", f"The Harness API connection closed: {reason}")


class JoinRefused(PodHostError):
    code = "join_refused"

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class JoinUnavailable(PodHostError):
    code = "join_unavailable"


class ConnectRefused(PodHostError):
    """The Harness API's listener answered the upgrade with an HTTP status (section 1)."""

    code = "connect_refused"

    def __init__(self, status: int) -> None:
        super().__init__(f"the Harness API refused the connection: {status}")
        self.status = status


class VolumeIdError(PodHostError):
    code = "volume_id"


class GateRefusal(PodHostError):
    """A gate's ``{error: {code, message}}``. ``code`` is one of GATE_ERROR_CODES, ``status`` the HTTP status."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message


class GateUnavailable(PodHostError):
    code = "gate_unavailable"


class SandboxError(PodHostError):
    code = "sandbox.error"


class WorkerLost(SandboxError):
    code = "sandbox.worker_lost"


class ConfinementMissing(SandboxError):
    code = "sandbox.confinement_missing"


class InputIssue(TypedDict):
    """One fault of a tool's input, as the model and a ``tool.invalid-input`` answer's details hold it."""

    path: list[str | int]
    code: str
    message: str


class InvalidToolInput(SandboxError):
    """A sandbox tool's input that does not fit. ``issues`` holds every fault of it, each naming its member."""

    code = "tool.invalid-input"

    def __init__(self, tool: str, issues: Sequence[InputIssue]) -> None:
        named = [f"{'.'.join(map(str, issue['path'])) or 'input'}: {issue['message']}" for issue in issues]
        super().__init__(f"{tool}: {'; '.join(named)}")
        self.tool = tool
        self.issues = list(issues)


class AgentFileError(PodHostError):
    code = "agent_file"
