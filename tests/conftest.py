"""Property tests draw the same examples at every run, so that a change is never blamed for what was there before it. To look
for what nobody has met yet: ``pytest --hypothesis-profile=new``."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("new", derandomize=False)
settings.load_profile("same")
