"""pod_host: the harness host of a Nylorun pod Agent."""

__version__ = "0.1.0"
