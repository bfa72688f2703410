"""``pod-host run`` as it is, with shorter patience and a clock that can be moved: ``host.py CLOCK``.

What takes the product minutes (a silent peer, a gate that never answers) takes seconds here, so that a run meets it often.
"""

from __future__ import annotations

import sys

from tests.endurance.clock import follow

SHORTER = {
    "SILENCE_SECONDS": 8.0,
    "PING_SECONDS": 2.0,
    "HANDSHAKE_SECONDS": 4.0,
    "JOIN_TIMEOUT_SECONDS": 4.0,
    "JOIN_BACKOFF_MOST_SECONDS": 2.0,
    "RENEW_RETRY_SECONDS": (1.0, 2.0, 4.0),
    "RECONNECT_MOST_SECONDS": 2.0,
    "GATE_CLIENT_SECONDS": 5.0,
    "GATE_CONNECT_SECONDS": 3.0,
    "GATE_BACKOFF_MOST_SECONDS": 2.0,
    "MCP_DISCOVERY_SECONDS": 15.0,
}


def main() -> int:
    follow(sys.argv[1])
    from pod_host import limits

    for name, value in SHORTER.items():
        assert hasattr(limits, name), name
        setattr(limits, name, value)
    from pod_host.cli import main as cli

    return cli(["run"])


if __name__ == "__main__":
    sys.exit(main())
