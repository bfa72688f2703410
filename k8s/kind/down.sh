#!/bin/sh
# Takes the cluster away, its volumes with it.
set -eu
command -v kind >/dev/null 2>&1 || {
  echo "error: kind was not found; install it, or remove the cluster with what made it" >&2
  exit 1
}
kind delete cluster --name "${KIND_CLUSTER:-pod-host}"
