"""``pod-host run`` on a kernel that has less than this one: ``masked.py {"abi", "seccomp"}``; null: all there is."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from unittest import mock

from pod_host.host import hardening, life, main
from pod_host.sandbox import SandboxConfig
from pod_host.settings import Settings

mask = json.loads(sys.argv[1])


def masked(settings: Settings) -> SandboxConfig:
    config = hardening.sandbox_config(settings)
    return dataclasses.replace(config, landlock_abi=mask["abi"], seccomp=mask["seccomp"])


with mock.patch.object(life, "sandbox_config", masked):
    sys.exit(main(Settings.read(os.environ)))
