"""The launch contract: what each variable may hold, and how faults are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from pod_host.errors import ConfigurationError
from pod_host.settings import PROTECTIONS, Address, Settings

POD = {
    "NYLORUN_SANDBOX_ID": "net/one",
    "NYLORUN_POD_UID": "6d4b5f3a-1",
    "NYLORUN_SANDBOX_JOIN_FILE": "/run/nylorun/join/token",
    "NYLORUN_HARNESS_URL": "http://10.0.0.1:4200",
    "NYLORUN_GATES_URL": "https://10.0.0.1:4300/",
}


def faults_of(**changes: str) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        Settings.read({**POD, **changes})
    return caught.value.faults


def test_the_defaults_are_those_of_a_pod() -> None:
    settings = Settings.read(POD)
    assert settings.sandbox_id == "net/one"
    assert settings.harness_id == "pod-host"
    assert settings.harness_dir == Path("/harness")
    assert (settings.workspace_dir, settings.skills_dir) == (Path("/workspace"), Path("/skills"))
    assert settings.gates_url == "https://10.0.0.1:4300"
    assert settings.egress_proxy is None
    assert settings.probes == (Address("10.96.0.1", 443),)
    assert settings.network_gate is True
    assert (settings.slots, settings.renew_seconds, settings.drain_seconds) == (8, 300, 7)
    assert settings.sandbox_uid == 1000
    assert settings.log_format is None
    assert settings.required_confinement == frozenset()
    assert settings.harness_address == Address("10.0.0.1", 4200)


def test_spans_go_where_the_operator_says() -> None:
    assert Settings.read(POD).otlp_endpoint is None
    settings = Settings.read({**POD, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"})
    assert settings.otlp_endpoint == "http://collector:4318"
    assert "OTEL_EXPORTER_OTLP_ENDPOINT is 'collector'" in faults_of(OTEL_EXPORTER_OTLP_ENDPOINT="collector")[0]


def test_all_faults_are_told_together_each_with_its_variable() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Settings.read({"POD_HOST_SLOTS": "none", "POD_HOST_NETWORK_GATE": "maybe"})
    faults = caught.value.faults
    names = [fault.split()[0] for fault in faults]
    assert sorted(names) == sorted([*POD, "POD_HOST_SLOTS", "POD_HOST_NETWORK_GATE"])
    assert any("'maybe'; on or off is needed" in fault for fault in faults)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("NYLORUN_SANDBOX_ID", "x" * 513),
        ("NYLORUN_POD_UID", "not a uid"),
        ("NYLORUN_POD_UID", "x" * 65),
        ("NYLORUN_SANDBOX_JOIN_FILE", "relative/token"),
        ("NYLORUN_HARNESS_URL", "10.0.0.1:4200"),
        ("NYLORUN_HARNESS_URL", "ws://10.0.0.1:4200"),
        ("NYLORUN_HARNESS_URL", "http://10.0.0.1:4200/nylorun/harness/v1"),
        ("NYLORUN_HARNESS_URL", "http://10.0.0.1:99999"),
        ("NYLORUN_HARNESS_URL", "http://[10.0.0.1:4200"),
        ("NYLORUN_GATES_URL", "http://10.0.0.1:4300?x=1"),
        ("NYLORUN_EGRESS_PROXY", "socks5://10.0.0.1:1"),
        ("NYLORUN_SANDBOX_BLOCKED_PROBE", "10.0.0.1"),
        ("NYLORUN_SANDBOX_BLOCKED_PROBE", "10.0.0.1:0"),
        ("NYLORUN_SANDBOX_BLOCKED_PROBE", "fd00::1:443"),
        ("KUBERNETES_SERVICE_PORT", "tcp"),
        ("NYLORUN_HARNESS_ROOT", "harness"),
        ("POD_HOST_HARNESS_ID", "Pod-Host"),
        ("POD_HOST_HARNESS_ID", "x"),
        ("POD_HOST_RENEW_SECONDS", "0"),
        ("POD_HOST_RENEW_SECONDS", "-1"),
        ("POD_HOST_RENEW_SECONDS", "inf"),
        ("POD_HOST_RENEW_SECONDS", "nan"),
        ("POD_HOST_SLOTS", "0"),
        ("POD_HOST_SLOTS", "1.5"),
        ("POD_HOST_SLOTS", "٣"),
        ("POD_HOST_SANDBOX_UID", "0"),
        ("POD_HOST_DRAIN_SECONDS", "soon"),
        ("POD_HOST_LOG_LEVEL", "loud"),
        ("POD_HOST_LOG_FORMAT", "xml"),
        ("POD_HOST_CONFINEMENT", "required"),
        ("POD_HOST_CONFINEMENT", "require:everything"),
    ],
)
def test_a_wrong_value_is_one_fault_that_names_it(variable: str, value: str) -> None:
    (fault,) = faults_of(**{variable: value})
    assert fault.startswith(f"{variable} is ")
    assert value[:40] in fault


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    (fault,) = faults_of(NYLORUN_GATES_URL="http://me:hunter2/@@10.0.0.1:1")
    assert "hunter2" not in fault


@pytest.mark.parametrize("variable", ["POD_HOST_WORKSPACE_DIR", "POD_HOST_SKILLS_DIR"])
@pytest.mark.parametrize(
    ("hidden", "below"), [("POD_HOST_HARNESS_DIR", ""), ("POD_HOST_HARNESS_DIR", "h"), (None, "t")]
)
def test_what_is_hidden_from_commands_cannot_lie_where_they_write(
    tmp_path: Path, variable: str, hidden: str | None, below: str
) -> None:
    """The kernel would open the host's directory to them, or close the workspace."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    place = {hidden or "NYLORUN_SANDBOX_JOIN_FILE": str(tmp_path / "real" / below)}
    (fault,) = faults_of(**place, **{variable: str(tmp_path / "link")})
    assert fault.startswith(f"{variable} is ")
    assert "must lie outside of it" in fault
    Settings.read({**POD, **place, variable: str(tmp_path / "real-not")})


def test_the_workspace_may_lie_in_the_hosts_directory() -> None:
    Settings.read({**POD, "POD_HOST_WORKSPACE_DIR": "/harness/workspace"})


def test_a_variable_that_is_nearly_a_setting_is_told_and_one_of_a_service_is_not() -> None:
    others = {"POD_HOST_PYTHON": "x", "POD_HOST_SLOTS_PORT": "tcp://10.0.0.1:80", "POD_HOST_SLOTS_SERVICE_HOST": "x"}
    settings = Settings.read({**POD, **others, "POD_HOST_HARNES_DIR": "/h"})
    assert settings.misspelt == ("POD_HOST_HARNES_DIR is no setting; did you mean POD_HOST_HARNESS_DIR?",)


def test_an_empty_variable_counts_as_unset() -> None:
    settings = Settings.read({**POD, "NYLORUN_EGRESS_PROXY": "", "POD_HOST_SLOTS": "  "})
    assert settings.egress_proxy is None
    assert settings.slots == 8


def test_the_harness_directory_may_be_named_by_either_variable() -> None:
    assert Settings.read({**POD, "NYLORUN_HARNESS_ROOT": "/h"}).harness_dir == Path("/h")
    both = {**POD, "NYLORUN_HARNESS_ROOT": "/h", "POD_HOST_HARNESS_DIR": "/mine"}
    assert Settings.read(both).harness_dir == Path("/mine")


def test_the_probe_is_the_api_server_unless_others_are_named() -> None:
    cluster = {**POD, "KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    assert Settings.read(cluster).probes == (Address("fd00::1", 6443),)
    named = {**cluster, "NYLORUN_SANDBOX_BLOCKED_PROBE": "10.0.0.9:80, [fd00::2]:81"}
    assert Settings.read(named).probes == (Address("10.0.0.9", 80), Address("fd00::2", 81))
    assert str(Address("fd00::2", 81)) == "[fd00::2]:81"


def test_confinement_can_be_required_in_whole_or_in_part() -> None:
    assert Settings.read({**POD, "POD_HOST_CONFINEMENT": "require"}).required_confinement == {*PROTECTIONS}
    assert Settings.read({**POD, "POD_HOST_CONFINEMENT": "require:files"}).required_confinement == {"files"}


def test_ports_of_urls_have_their_defaults() -> None:
    assert Settings.read({**POD, "NYLORUN_HARNESS_URL": "https://[fd00::5]"}).harness_address == Address("fd00::5", 443)
    assert Settings.read({**POD, "NYLORUN_HARNESS_URL": "http://core/"}).harness_address == Address("core", 80)


def test_the_runtimes_roots_are_looked_at_with_everything_else(tmp_path: Path) -> None:
    no_certificate = tmp_path / "roots.pem"
    no_certificate.write_text("no PEM")
    for path, problem in ((tmp_path / "absent", "it cannot be read"), (no_certificate, "it holds no certificate")):
        with pytest.raises(ConfigurationError) as raised:
            Settings.read({"POD_HOST_RUNTIME_CA": str(path), "POD_HOST_SLOTS": "x"})
        told = [line for line in raised.value.faults if line.startswith(("POD_HOST_RUNTIME_CA", "POD_HOST_SLOTS"))]
        assert len(told) == 2
        assert any(problem in line for line in told)
