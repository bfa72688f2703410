"""Tests of the image and the manifests: `make image-test`. A plain run of all tests leaves them out, since they need root,
Debian's container tools and some minutes; naming this directory brings them in."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    named = any(HERE.name in argument.split("::")[0].split("/") for argument in config.invocation_params.args)
    return None if named else True
