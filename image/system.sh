#!/bin/sh
# Root, in a Debian base: packages, the user, the mount points. Leaves no list, cache, log or set-user-id file behind.
set -eu

new_enough() {
  command -v python3 >/dev/null && python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'
}

packages="bash ca-certificates curl git procps tini"
new_enough || packages="$packages python3"

apt-get update -qq
# shellcheck disable=SC2086 # words
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
  -o Dpkg::Options::=--path-exclude='/usr/share/doc/*' \
  -o Dpkg::Options::=--path-include='/usr/share/doc/*/copyright' \
  -o Dpkg::Options::=--path-exclude='/usr/share/man/*' \
  -o Dpkg::Options::=--path-exclude='/usr/share/locale/*' \
  -o Dpkg::Options::=--path-exclude='/usr/share/info/*' \
  -o Dpkg::Options::=--path-exclude='/usr/share/lintian/*' \
  $packages
new_enough || {
  echo "pod-host needs Python 3.11 or newer; this base's is $(python3 -V 2>&1)" >&2
  exit 1
}

# A base may have a user 1000 of its own: its name does not matter. The date in /etc/shadow is SOURCE_DATE_EPOCH's.
getent group 1000 >/dev/null || groupadd --gid 1000 agent
getent passwd 1000 >/dev/null ||
  useradd --no-log-init --no-create-home --uid 1000 --gid 1000 --home-dir /harness/home --shell /bin/bash agent

# Volumes are mounted here; without them the image still starts.
install -d -o 1000 -g 1000 /workspace /harness /skills
# One file in the place of twelve: whatever asks for its locale, as every shell does, starts a tenth of a millisecond sooner.
localedef --add-to-archive --replace --quiet /usr/lib/locale/C.utf8
ln -sf /opt/pod-host/bin/pod-host /opt/pod-host/bin/rg /usr/local/bin/

# A pod has no_new_privs, where these bits do nothing; elsewhere they are of no use to a command either.
find / -xdev -type f -perm /6000 -exec chmod a-s {} +

# Directories stay, for whoever installs more; what two builds would differ in goes.
apt-get clean
find /var/cache /var/log -type f -delete
rm -rf /var/lib/apt/lists/* /root/.cache /var/lib/dpkg/*-old /etc/*-
