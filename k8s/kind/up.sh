#!/bin/sh
# From nothing to a turn: a cluster, both images in it, a sandbox's pod and the embedded Runtime, one message.
# Run again, it takes the cluster that is there, with the images built anew and the sandbox's volume kept.
set -eu
cd "$(dirname "$0")/../.."
cluster=${KIND_CLUSTER:-pod-host}
message=${MESSAGE:-Write a small program and test it.}
sandboxes=nylorun-sbx-dev
runtime=nylorun-dev-runtime

fail() {
  echo "error: $1" >&2
  exit 1
}
step() { echo "── $1"; }
k() { kubectl --context "kind-$cluster" "$@"; }

command -v docker >/dev/null 2>&1 || fail "docker was not found; kind runs its nodes in it: install Docker"
docker info >/dev/null 2>&1 || fail "the Docker engine does not answer; start it, or give this user the right to use it"
command -v kind >/dev/null 2>&1 || fail "kind was not found; install kind 0.24 or newer (kind.sigs.k8s.io)"
command -v kubectl >/dev/null 2>&1 || fail "kubectl was not found; install it (kubernetes.io/docs/tasks/tools)"

step "images"
ENGINE=docker sh image/build.sh

step "cluster $cluster"
if ! kind get clusters 2>/dev/null | grep -qx "$cluster"; then
  kind create cluster --name "$cluster" --config k8s/kind/cluster.yaml --wait 180s || fail "kind could not make the cluster"
fi
kind load docker-image --name "$cluster" localhost/pod-host:dev localhost/pod-host-dev-runtime:dev
# The DNS service is what the sandbox must see closed: were it not up, that would prove nothing.
k -n kube-system rollout status deployment/coredns --timeout 180s

step "sandbox and Runtime"
address=$(k get nodes -o 'jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}')
[ -n "$address" ] || fail "the node tells no address"
token=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
manifests=$(k kustomize k8s/kind | sed -e "s/192\.0\.2\.1/$address/g" -e "s/replace-this-join-token/$token/g")
pod=$(k kustomize k8s/kind | awk '/^kind: Pod$/ { found = 1 } found && /^  name: / { print $2; exit }')
k -n "$sandboxes" delete pod "$pod" --ignore-not-found # a pod cannot be changed; its volume stays
echo "$manifests" | k apply -f -
k -n "$runtime" rollout restart deployment/dev-runtime
k -n "$runtime" rollout status deployment/dev-runtime --timeout 180s
k -n "$sandboxes" wait pod "$pod" --for condition=Ready --timeout 180s || {
  k -n "$sandboxes" describe pod "$pod" | tail -n 20 >&2
  fail "the sandbox's pod did not start"
}

step "› $message"
say="exec -n $runtime deploy/dev-runtime"
# shellcheck disable=SC2086 # words
k $say -- /opt/pod-host/bin/python -I -m pod_host.dev.say --wait 180 "$message" || {
  k -n "$sandboxes" logs "$pod" --tail 20 >&2
  fail "the turn did not complete; above are the host's last words"
}

cat <<DONE

Next:
  a chat           kubectl --context kind-$cluster ${say%%deploy*}-it deploy/dev-runtime -- /opt/pod-host/bin/python -I -m pod_host.dev.say
  how the host is  kubectl --context kind-$cluster exec -n $sandboxes $pod -- pod-host status
  its log          kubectl --context kind-$cluster logs -n $sandboxes $pod -f
  suspend, resume  kubectl --context kind-$cluster delete pod -n $sandboxes $pod; make kind
  the end          make kind-down
More in docs/kubernetes.md.
DONE
