#!/bin/sh
# Builds the image and the embedded Runtime's, with the first container engine that works here.
# ENGINE=docker|podman|buildah chooses one; BASE_IMAGE another base; BUILD_OPTIONS are passed on to it.
set -eu
cd "$(dirname "$0")/.."

works() { command -v "$1" >/dev/null 2>&1 && "$1" info >/dev/null 2>&1; }
engine=${ENGINE:-}
for candidate in docker podman buildah; do
  [ -n "$engine" ] || ! works "$candidate" || engine=$candidate
done
[ -n "$engine" ] || {
  echo "error: no container engine answers; install docker, podman or buildah, or start the one that is there" >&2
  exit 1
}

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' pod_host/__init__.py)
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
build() {
  echo "Building $1 with $engine …" >&2
  # shellcheck disable=SC2086 # BUILD_OPTIONS are words
  "$engine" build --target "$2" --tag "$1" ${BASE_IMAGE:+--build-arg "BASE_IMAGE=$BASE_IMAGE"} \
    --build-arg "VERSION=$version" --build-arg "REVISION=$revision" ${BUILD_OPTIONS:-} .
}
build localhost/pod-host:dev pod-host
build localhost/pod-host-dev-runtime:dev dev-runtime
