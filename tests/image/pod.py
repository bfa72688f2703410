"""The manifests' pods as podman runs them (`podman play kube`), with the documents' own security settings, limits,
emptyDirs and downward API.

What podman 4.3 does not know is done here as Kubernetes would: subPaths of a claim, fsGroup, a Secret's files.
"""

from __future__ import annotations

import json
import os
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import yaml

from tests.image.machine import Machine, until
from tests.image.network import RUNTIME, Network
from tests.image.render import Document, one, render

UID: Final = 1000
Event = dict[str, Any]


class Volume:
    """A claim's disk: root's, and the group's by fsGroup. A path of it that is asked for is made, as for a subPath."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path("workspace")
        self.path("harness")

    def path(self, sub_path: str) -> Path:
        path = self.directory / sub_path
        if not path.exists():
            path.mkdir(parents=True)
            os.chown(path, 0, UID)
            path.chmod(0o2775)
        return path


class JoinSecret:
    """A mounted Secret: `token` is a link through `..data` to a directory that is swapped when the Secret changes."""

    def __init__(self, directory: Path, token: str | None = None) -> None:
        self.directory = directory
        self._versions = 0
        directory.mkdir(parents=True)
        directory.chmod(0o755)
        if token is not None:
            self.put(token)

    def put(self, token: str) -> None:
        self._versions += 1
        version = self.directory / f"..{self._versions}"
        version.mkdir()
        file = version / "token"
        file.write_text(token)
        os.chown(file, 0, UID)
        file.chmod(0o440)
        new = self.directory / "..data_tmp"
        new.symlink_to(version.name)
        new.rename(self.directory / "..data")
        if not (self.directory / "token").is_symlink():
            (self.directory / "token").symlink_to("..data/token")


class Container:
    """One container of a pod. podman knows no network of its own for it, so whatever runs in it is started there."""

    def __init__(self, machine: Machine, network: Network, on: str, pod_name: str, name: str) -> None:
        self.machine = machine
        self.network = network
        self.on = on
        self.pod_name = pod_name
        self.name = f"{pod_name}-{name}"

    @property
    def state(self) -> Any:
        (found,) = json.loads(self.machine.podman("inspect", self.name))
        return found["State"] | {"RestartCount": found["RestartCount"]}

    def log(self) -> str:
        _, out, err = self.machine.outcome(*self.machine.podman_command("logs", self.name))
        return out + err

    def events(self, name: str) -> list[Event]:
        """Of the host's log."""
        found = []
        for line in self.log().splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue  # podman's own, or a program's before the log is set up
            if isinstance(event, dict) and event.get("event") == name:
                found.append(event)
        return found

    def wait_for(self, event: str, count: int = 1, seconds: float = 60.0) -> Event:
        until(lambda: len(self.events(event)) >= count, f"{event} in the log of {self.name}", seconds)
        return self.events(event)[count - 1]

    def exec(self, *command: str, check: bool = True, seconds: float = 60.0) -> str:
        return self.machine.run(*self._exec(*command), check=check, seconds=seconds)

    def try_exec(self, *command: str, seconds: float = 60.0) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        return self.machine.outcome(*self._exec(*command), seconds=seconds)

    def _exec(self, *command: str) -> list[str]:
        return self.network.inside(self.on, *self.machine.podman_command("exec", self.name, *command))

    def pids(self, pattern: str) -> list[int]:
        """The machine's own ids of its processes whose command line holds ``pattern``."""
        rows = self.machine.podman("top", self.name, "hpid", "args").splitlines()[1:]
        return [int(row.split()[0]) for row in rows if pattern in row]

    def delete(self, grace: int = 10) -> None:
        """The container, as Kubernetes ends it; grace 0: as a node does that dies. What podman keeps of its pod takes
        seconds to go: that is not waited for."""
        self.machine.podman("rm", "--force", "--ignore", "--time", str(grace), self.name)
        self.machine.later(
            *self.machine.podman_command("pod", "rm", "--force", "--ignore", "--time", "0", self.pod_name)
        )

    def stop(self, seconds: int) -> int:
        """SIGTERM, and SIGKILL after the grace. The exit code: 137 when that was needed."""
        self.machine.podman("stop", "--time", str(seconds), self.name)
        return int(self.state["ExitCode"])


class Pod(Container):
    """The sandbox's pod. Each is a new pod, with a UID of its own, on the volume and with the Secret that it is given."""

    made = 0

    def __init__(
        self,
        network: Network,
        volume: Volume,
        join: JoinSecret,
        *,
        machine: Machine,
        on: str = "pod",
        image: str | None = None,
        env: dict[str, str] | None = None,
        restart: str | None = None,
        memory: str | None = None,
    ) -> None:
        Pod.made += 1
        super().__init__(machine, network, on, f"sandbox-{Pod.made}", "workload")
        document = for_podman(one(render("base"), "Pod"), volume, {"join": join.directory})
        document["metadata"]["name"] = self.pod_name
        (container,) = document["spec"]["containers"]
        container["env"] += [{"name": name, "value": value} for name, value in (env or {}).items()]
        if image:
            container["image"] = image
        if restart:
            document["spec"]["restartPolicy"] = restart
        if memory:
            container["resources"]["limits"]["memory"] = memory
        self.uid = play(machine, network, on, document)

    def kill_host(self) -> None:
        (pid,) = self.pids("pod_host run")
        os.kill(pid, 9)


class RuntimeContainer(Container):
    """The embedded Runtime, from the Deployment's own pod template, on the node's address."""

    made = 0

    def __init__(
        self,
        network: Network,
        state: Path,
        join: JoinSecret,
        *,
        machine: Machine,
        arguments: tuple[str, ...] = (),
        agent: str | None = None,
    ) -> None:
        RuntimeContainer.made += 1
        super().__init__(machine, network, "runtime", f"runtime-{RuntimeContainer.made}", "runtime")
        state.mkdir(exist_ok=True)
        os.chown(state, 0, UID)
        state.chmod(0o2775)
        documents = render("dev-runtime")
        template = one(documents, "Deployment")["spec"]["template"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": self.pod_name}, "spec": template["spec"]}
        files = state.parent / f"{self.pod_name}-agent"
        files.mkdir()
        (files / "agent.yaml").write_text(agent or one(documents, "ConfigMap")["data"]["agent.yaml"])
        document = for_podman(pod, None, {"join": join.directory, "agent": files, "state": state})
        (container,) = document["spec"]["containers"]
        # podman has neither the node's address nor probes.
        container["env"] = [{"name": "NODE_ADDRESS", "value": RUNTIME}]
        container["args"] = [arg.replace("$(NODE_ADDRESS)", RUNTIME) for arg in (*container["args"], *arguments)]
        del container["readinessProbe"], container["envFrom"], container["ports"]
        play(machine, network, "runtime", document)
        until(lambda: '"urls"' in self.log(), "the embedded Runtime's first line")

    def north(self, path: str, body: object = None, seconds: float = 60.0) -> Any:
        command = ["curl", "--silent", "--show-error", "--max-time", str(seconds), f"http://127.0.0.1:4180/v1/{path}"]
        if body is not None:
            command += ["--json", json.dumps(body)]
        answer = self.machine.run(*self.network.inside("runtime", *command), seconds=seconds + 5)
        return json.loads(answer)

    @property
    def host(self) -> Any:
        """What it knows of its host: joined, connected, epoch, podUid."""
        return self.north("status")["host"]

    def wait_for_host(self, pod: Pod | None = None, epoch: int = 1, seconds: float = 60.0) -> None:
        def there() -> bool:
            host = self.host
            return bool(host["connected"] and host["epoch"] >= epoch and (pod is None or host["podUid"] == pod.uid))

        until(there, f"a connected host of epoch {epoch}", seconds)

    def record(self, kind: str) -> list[Event]:
        command = ["curl", "--silent", "http://127.0.0.1:4180/v1/events"]
        lines = self.machine.run(*self.network.inside("runtime", *command)).splitlines()
        return [event for event in map(json.loads, lines) if event["type"] == kind]

    def say(self, message: str, *options: str, seconds: float = 60.0) -> tuple[int, str]:
        """Exit code and what is shown."""
        command = ("/opt/pod-host/bin/python", "-I", "-m", "pod_host.dev.say", message, *options)
        code, out, err = self.try_exec(*command, seconds=seconds)
        return code, out + err

    def session(self) -> str:
        return str(self.north("sessions", {})["sessionId"])

    def bash(self, session: str, command: str, seconds: float = 60.0) -> Any:
        """What a command of the session's sandbox answers: {exitCode, stdout, stderr}."""
        answer = self.north(
            f"sessions/{session}/sandbox/exec", {"tool": "bash", "input": {"command": command}}, seconds=seconds
        )
        return answer.get("output", answer)


def play(machine: Machine, network: Network, name: str, document: Document) -> str:
    """Run the pod in that network, as its host network. Its UID."""
    file = machine.storage / f"{document['metadata']['name']}.yaml"
    file.write_text(yaml.safe_dump(document))
    told = machine.run(*network.inside(name, *machine.podman_command("play", "kube", "--network", "host", str(file))))
    lines = told.splitlines()
    return lines[lines.index("Pod:") + 1]


def for_podman(pod: Document, volume: Volume | None, directories: dict[str, Path]) -> Document:
    """Claims' subPaths and the volumes of ``directories`` become paths of this machine; all else stays as it is."""
    document = deepcopy(pod)
    document["metadata"].pop("namespace", None)
    spec = document["spec"]
    paths = dict(directories)
    for container in spec["containers"]:
        for mount in container["volumeMounts"]:
            if volume is not None and mount["name"] == "data":
                sub_path = mount.pop("subPath")
                mount["name"] = f"data-{sub_path}"
                paths[mount["name"]] = volume.path(sub_path)
    kept = [one for one in spec["volumes"] if "emptyDir" in one and one["name"] not in paths]
    spec["volumes"] = kept + [{"name": name, "hostPath": {"path": str(path)}} for name, path in paths.items()]
    return document
