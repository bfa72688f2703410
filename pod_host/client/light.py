"""httpx without its command line, which would bring click, rich and pygments in wherever they are installed: a third of the
time that httpx takes to import, and megabytes, for nothing that a host does. httpx itself goes on without it."""

from __future__ import annotations

import sys

sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # None: an ImportError, which httpx expects

import httpx  # noqa: E402

if sys.modules["httpx._main"] is None:
    del sys.modules["httpx._main"]

__all__ = ["httpx"]
