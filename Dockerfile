# The image of a pod Agent's harness, and (target dev-runtime) of the embedded Runtime.
#
#   make image                                     builds both, with podman, buildah or docker
#   docker build --build-arg BASE_IMAGE=python:3.13-slim -t my-pod-host .
#
# Any Debian (or Ubuntu) base will do: Debian's own Python comes in where the base has none that is new enough.
ARG BASE_IMAGE=debian:bookworm-slim
# The one time that the files which we make speak of.
ARG SOURCE_DATE_EPOCH=1767225600

# --- what the programs need of the system; the final image is this and one directory ------------------------------------
FROM ${BASE_IMAGE} AS system
ARG SOURCE_DATE_EPOCH
USER root
COPY image/system.sh /tmp/system.sh
RUN sh /tmp/system.sh && rm /tmp/system.sh

# --- what is needed to build, and stays here ------------------------------------------------------------------------------
FROM system AS tools
ARG SOURCE_DATE_EPOCH
# pip trusts what the system trusts: behind a proxy that intercepts TLS the base, or a mount of the build, brings its root.
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
# The system's package list is kept as it is in the final image: the SBOM speaks of that one.
RUN set -eu; \
    cp /var/lib/dpkg/status /tmp/status; \
    python3 -c 'import ensurepip, venv' 2>/dev/null || { \
      apt-get update -qq; \
      DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv; \
    }; \
    python3 -m venv /tmp/pip
WORKDIR /src
COPY image/venv.sh image/sbom.py image/

FROM tools AS wheel
ARG SOURCE_DATE_EPOCH
COPY locks/build.lock locks/
RUN python3 -m venv /tmp/hatch && \
    /tmp/pip/bin/pip --python /tmp/hatch/bin/python install --quiet --require-hashes -r locks/build.lock
COPY pyproject.toml README.md LICENSE ./
COPY pod_host pod_host
RUN /tmp/pip/bin/pip --python /tmp/hatch/bin/python wheel --quiet --no-deps --no-build-isolation -w /wheel .

FROM tools AS host
ARG SOURCE_DATE_EPOCH
# otel: with what sends spans to a collector.
ARG LOCK=host
COPY locks/${LOCK}.lock locks/
RUN sh image/venv.sh install --require-hashes --only-binary :all: -r locks/${LOCK}.lock
COPY --from=wheel /wheel /wheel
RUN sh image/venv.sh install --no-deps /wheel/*.whl && sh image/venv.sh finish
COPY entrypoint.sh /opt/pod-host/

FROM tools AS runtime
ARG SOURCE_DATE_EPOCH
COPY locks/dev.lock locks/
RUN sh image/venv.sh install --require-hashes --only-binary :all: -r locks/dev.lock
COPY --from=wheel /wheel /wheel
RUN sh image/venv.sh install --no-deps /wheel/*.whl && sh image/venv.sh finish

# --- the embedded Runtime ---------------------------------------------------------------------------------------------------
FROM system AS dev-runtime
COPY --from=runtime /opt/pod-host /opt/pod-host
LABEL org.opencontainers.image.title="pod-host dev-runtime" \
      org.opencontainers.image.description="The embedded Runtime of pod_host, for trying pod Agents in a cluster" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV HOME=/tmp LANG=C.UTF-8
USER 1000:1000
WORKDIR /tmp
ENTRYPOINT ["/usr/bin/tini", "--", "/opt/pod-host/bin/python", "-I", "-m", "pod_host.dev"]
CMD ["--state-dir", "/tmp/runtime"]

# --- the image ----------------------------------------------------------------------------------------------------------------
FROM system AS pod-host
ARG VERSION=0
ARG REVISION=unknown
COPY --from=host /opt/pod-host /opt/pod-host
LABEL org.opencontainers.image.title="pod-host" \
      org.opencontainers.image.description="The harness host of a Nylorun pod Agent" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV HOME=/harness/home LANG=C.UTF-8
USER 1000:1000
WORKDIR /workspace
# tini is PID 1: it passes signals on to the host, and reaps what the host's death leaves behind.
ENTRYPOINT ["/usr/bin/tini", "--", "/opt/pod-host/entrypoint.sh"]
