"""``pod-host doctor``: what works here and what would not, without joining and without a trace."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pod_host.host import log
from pod_host.host.doctor.findings import Finding, as_json, as_table, is_well
from pod_host.host.doctor.kernel_features import look_at_kernel
from pod_host.host.doctor.network import look_at_network
from pod_host.host.doctor.place import look_at_disks, look_at_join_file, read_settings
from pod_host.host.doctor.sandboxed import look_into_sandbox
from pod_host.host.hardening import harden


def main(environ: Mapping[str, str], *, json: bool) -> int:
    """Looks, prints, and returns the exit code: 1 when something would fail."""
    harden()  # the join token is looked at
    log.configure("error", "text")
    try:
        findings = asyncio.run(examine(environ))
    finally:
        log.finish()
    print(as_json(findings) if json else as_table(findings))
    return 0 if is_well(findings) else 1


async def examine(environ: Mapping[str, str]) -> list[Finding]:
    settings, at_fault, findings = read_settings(environ)
    if "NYLORUN_SANDBOX_JOIN_FILE" not in at_fault:
        findings += look_at_join_file(settings)
    findings += await look_at_network(settings, at_fault)
    findings += look_at_disks(settings, at_fault)
    findings += look_at_kernel()
    findings += await look_into_sandbox(settings, environ)
    return findings
