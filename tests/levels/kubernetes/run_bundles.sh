#!/usr/bin/env bash
# Runs OCI bundles: run_bundles.sh BUNDLE...
#
# All but the last one run until they end. The last one is a daemon: when it answers (health.json),
# the process script.json runs in its container. A bundle also names the root of its image (`lower`).
# Needs mount and process namespaces of its own, which end all processes.
set -euo pipefail

# crun fails on a machine where cgroup v2 is one of several hierarchies.
mount -t cgroup2 none /sys/fs/cgroup

crun_of() {
  crun --root "$1/state" --cgroup-manager=disabled "${@:2}"
}

for bundle; do
  mount -t overlay -o "lowerdir=$(cat "$bundle/lower"),upperdir=$bundle/upper,workdir=$bundle/work" overlay "$bundle/rootfs"
done
while [[ $# -gt 1 ]]; do
  crun_of "$1" run --bundle "$1" jig-test
  shift
done

bundle=$1
crun_of "$bundle" run --bundle "$bundle" jig-test >"$bundle/log" 2>&1 &
for ((tries = 0; ; tries++)); do
  ! crun_of "$bundle" exec --process "$bundle/health.json" jig-test >"$bundle/health" 2>&1 || break
  if [[ $tries == 300 ]]; then
    cat "$bundle/log" "$bundle/health"
    exit 1
  fi
  sleep 0.1
done
crun_of "$bundle" exec --process "$bundle/script.json" jig-test
