#!/usr/bin/env bash
# Runs the commands of the console in a virtual machine, one in each line. A line may begin with
# variables, as for env. Each command starts without processes and cgroups of the commands before.
set -euo pipefail

cgroups=/sys/fs/cgroup

# Ends all other processes, and removes their cgroups.
clean_up() {
  local cgroup controllers controller
  kill -KILL -1 2>/dev/null || true
  for cgroup in "$cgroups"/*/; do
    [[ -d $cgroup ]] || continue
    until grep -qx "populated 0" "$cgroup/cgroup.events"; do sleep 0.1; done
    find "$cgroup" -depth -type d -exec rmdir {} \;
  done
  read -ra controllers <"$cgroups/cgroup.subtree_control" || true
  for controller in "${controllers[@]}"; do
    echo "-$controller" >"$cgroups/cgroup.subtree_control"
  done
}

busybox stty -echo
echo "guest: ready"
while read -r command; do
  status=0
  # Arguments contain no blanks.
  # shellcheck disable=SC2086
  env $command </dev/null || status=$?
  clean_up
  echo "guest: exit code $status"
done
