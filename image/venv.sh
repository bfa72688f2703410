#!/bin/sh
# venv.sh LOCK: /opt/pod-host with pod_host and what LOCK names, pruned, compiled, with its SBOM.
set -eu
lock=$1
venv=/opt/pod-host

# No pip in it: nothing is ever installed here again.
python3 -m venv --without-pip "$venv"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
pip() { /tmp/pip/bin/pip --python "$venv/bin/python" install --quiet --no-compile "$@"; }
pip --require-hashes --only-binary :all: -r "$lock"
pip --no-deps /tmp/wheel/*.whl

find "$site" -type d \( -name tests -o -name test \) -prune -exec rm -r {} +
find "$site" \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.c' -o -name '*.h' \) -type f -delete
rm -f "$venv"/bin/activate* "$venv"/bin/Activate.ps1

# Bytecode that is never checked against its source: the root is read-only, and no clock gets into it.
PYTHONHASHSEED=0 "$venv/bin/python" -m compileall -q --invalidation-mode unchecked-hash "$site"
"$venv/bin/python" image/sbom.py --dpkg-status /tmp/status --site "$site" >"$venv/sbom.cdx.json"
