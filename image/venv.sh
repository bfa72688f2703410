#!/bin/sh
# venv.sh install WHAT…: into /opt/pod-host, which is made.   venv.sh finish: pruned, compiled, with its SBOM.
set -eu
venv=/opt/pod-host
step=$1
shift

if [ "$step" = install ]; then
  # No pip in it: nothing is installed there later.
  [ -d "$venv" ] || python3 -m venv --without-pip "$venv"
  /tmp/pip/bin/pip --python "$venv/bin/python" install --quiet --no-compile "$@"
  exit
fi

site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
find "$site" -type d \( -name tests -o -name test \) -prune -exec rm -r {} +
find "$site" -type f \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.c' -o -name '*.h' \) -delete
rm -f "$venv"/bin/activate* "$venv"/bin/Activate.ps1

# Bytecode that is never checked against its source: the root is read-only, and no clock gets into it.
PYTHONHASHSEED=0 "$venv/bin/python" -m compileall -q --invalidation-mode unchecked-hash "$site"
"$venv/bin/python" image/sbom.py --dpkg-status /tmp/status --site "$site" >"$venv/sbom.cdx.json"
