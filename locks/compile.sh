#!/bin/sh
# Write the lock files anew from pyproject.toml and the .in files. Needs uv on PATH. No index URL goes into them.
set -eu
cd "$(dirname "$0")/.."
compile() {
  out=$1
  shift
  uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
    --no-header --no-annotate --quiet --output-file "$out" "$@"
}
compile locks/host.lock pyproject.toml
compile locks/otel.lock pyproject.toml --extra otel -c locks/host.lock
compile locks/dev.lock pyproject.toml locks/build.in --extra dev -c locks/host.lock -c locks/otel.lock
compile locks/test.lock pyproject.toml locks/build.in --extra dev --extra otel --extra test -c locks/dev.lock -c locks/otel.lock
compile locks/build.lock locks/build.in -c locks/dev.lock
compile locks/image.lock locks/image.in -c locks/test.lock
compile locks/fuzz.lock locks/fuzz.in -c locks/test.lock
compile locks/peers.lock locks/peers.in
