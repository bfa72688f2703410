"""How a script becomes a program: bash where the image has it, else sh, as ``-c script``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from pod_host import limits
from pod_host.sandbox.worker.zygote_protocol import SCRIPT_DESCRIPTOR

_BASHES = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")


@dataclass(frozen=True, slots=True)
class Shell:
    path: str

    @classmethod
    def of_this_image(cls) -> Shell:
        return cls(next((path for path in _BASHES if os.access(path, os.X_OK)), "/bin/sh"))

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    def invocation(self, text: bytes) -> tuple[list[bytes], bytes]:
        """Arguments, and what is to lie in the script descriptor.

        One argument ends at 128 KiB. A longer script is read from a descriptor and evaluated: of the ways to do so the
        nearest to ``-c`` (the same ``$0``, ``$-``, exit codes and line numbers), and the script inherits nothing.
        """
        name = self.name.encode()
        if len(text) <= limits.ARGUMENT_BYTES:
            return [name, b"-c", text], b""
        source = b"/proc/self/fd/%d" % SCRIPT_DESCRIPTOR
        read = b"$(<%s)" % source if self.name == "bash" else b"$(cat %s)" % source
        return [name, b"-c", b'eval "%s" %d<&-' % (read, SCRIPT_DESCRIPTOR)], text


def environment_bytes(environment: Mapping[str, str]) -> dict[bytes, bytes]:
    """As execve takes it. What cannot be in one is left out: a name that is empty or holds ``=``, a NUL, half of a surrogate
    pair that stands for no byte."""
    encoded = {}
    for name, value in environment.items():
        try:
            variable = name.encode("utf-8", "surrogateescape"), value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            continue
        if name and "=" not in name and "\0" not in name + value:
            encoded[variable[0]] = variable[1]
    return encoded
