#!/bin/sh
# Starts the host. Checks what the program itself could not say clearly, then becomes it.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

fail() {
  echo "pod-host: $1" >&2
  exit 78
}

# The image's own Python, or the checkout's.
if [ -n "${POD_HOST_PYTHON:-}" ]; then
  python=$POD_HOST_PYTHON
elif [ -x /opt/pod-host/bin/python ]; then
  python=/opt/pod-host/bin/python
else
  python=$here/.venv/bin/python
fi
[ -x "$python" ] || fail "no Python at $python; in a checkout, 'make dev' makes it; or set POD_HOST_PYTHON"

# Two directories that the pod's volume gives; a read-only one would fail later, and less clearly.
for pair in \
  "POD_HOST_HARNESS_DIR=${POD_HOST_HARNESS_DIR:-${NYLORUN_HARNESS_ROOT:-/harness}}" \
  "POD_HOST_WORKSPACE_DIR=${POD_HOST_WORKSPACE_DIR:-/workspace}"; do
  name=${pair%%=*}
  dir=${pair#*=}
  [ -d "$dir" ] || fail "$name: $dir is not a directory; mount the volume there, or name another directory"
  [ -w "$dir" ] || fail "$name: $dir is not writable for uid $(id -u); give it that owner, or group $(id -g) with write"
done

# -I: the working directory is the workspace, and what lies there must never be imported by the host.
exec "$python" -I -m pod_host run "$@"
