#!/bin/sh
# Write the three lock files anew from pyproject.toml. Needs uv on PATH. No index URL goes into them.
set -eu
cd "$(dirname "$0")/.."
compile() {
  out=$1
  shift
  uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
    --no-header --no-annotate --quiet --output-file "$out" "$@"
}
compile locks/host.lock pyproject.toml
compile locks/dev.lock pyproject.toml locks/build.in --extra dev -c locks/host.lock
compile locks/test.lock pyproject.toml locks/build.in --extra dev --extra test -c locks/dev.lock
