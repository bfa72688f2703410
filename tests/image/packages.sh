#!/bin/sh
# What the tests of the image need of Debian: brought here when this is root. Without it they skip, and say what is missing.
set -eu
missing=
need() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
need buildah buildah
need podman podman
need runc runc
need conmon conmon
need catatonit catatonit
need mmdebstrap mmdebstrap
need nft nftables
need ip iproute2
need nsenter util-linux
need curl curl
[ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || exit 0
apt-get update -qq
# shellcheck disable=SC2086 # words
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing uidmap containernetworking-plugins
