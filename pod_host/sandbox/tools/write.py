"""The tool write: a file's whole content, exactly as given."""

from __future__ import annotations

import os

from pod_host.sandbox.outcomes import Completed
from pod_host.sandbox.tools.names import find_shown
from pod_host.sandbox.tools.opening import utf8
from pod_host.sandbox.tools.placing import put
from pod_host.sandbox.tools.workspace import Workspace


def write_file(workspace: Workspace, path: str, content: str) -> Completed:
    """Creates or overwrites ``path``, its parents made; a link is followed and stays. ``{path, bytes}``.

    Nothing is added to ``content`` or changed in it: line ends and BOM are what the model wrote. Raises ``ToolFailure``.
    """
    absolute = find_shown(workspace.resolve(path))
    encoded = utf8(content, "content")
    real = os.path.realpath(absolute)
    workspace.require_writable(absolute, real)
    with workspace.locks.holding(real):
        put(absolute, real, encoded)
    return Completed({"path": absolute, "bytes": len(encoded)})
