#!/usr/bin/env bash
# A plain NATS client in Python submits jobs to a daemon, as docs/operate/fleet.md describes.
set -euo pipefail

nats_server=

# Needs the stubs from try_agent.
try_fleet() {
  echo "a plain NATS client"
  local here=$scratch/fleet key server example
  mkdir -p "$here"
  # The server writes its free port into a file.
  nats-server --addr 127.0.0.1 --port -1 --jetstream --store_dir "$here/store" --ports_file_dir "$here" 2>"$here/nats.log" &
  nats_server=$!
  server=$(timeout 30 bash -c 'until grep -o "nats://[0-9.:]*" "$0"; do sleep 0.1; done' "$here/nats-server_$nats_server.ports" 2>/dev/null)
  check "the NATS server listens" 0 '^nats://127\.0\.0\.1:[0-9]+$' echo "$server"

  (umask 077 && openssl rand -hex 32 >"$here/signing.key")
  for key in ci:invoke dev:invoke reader:read; do
    "$jig" key --keys "$here/keys.toml" new "${key%:*}" --role "${key#*:}" >/dev/null
  done
  cat >"$here/jigd.toml" <<TOML
[fleet]
nats = ["$server"]
signing_key_file = "$here/signing.key"
[[fleet.queues]]
name = "build"
key = "ci"
TOML
  start_part_daemon fleet --config "$here/jigd.toml" --keys "$here/keys.toml"

  example=(env PYTHONPATH="$scratch/stubs" "$tools/sdks/python/bin/python" examples/fleet.py "$server" build)
  check "a plain client submits a job and reads its result" 0 '^fleet-[0-9a-f]{32} JOB_STATE_SUCCEEDED.*hello' "${example[@]}" "echo hello"
  check "a plain client reads a large result" 0 'JOB_STATE_SUCCEEDED.*110000' "${example[@]}" "seq 110000"
  check "a signed message runs with the rights of its principal" 0 'JOB_STATE_SUCCEEDED' \
    env JIG_SIGNING_KEY_FILE="$here/signing.key" JIG_PRINCIPAL=key:dev "${example[@]}" "echo hello"
  check "and not with more" 1 'JOB_STATE_FAILED' \
    env JIG_SIGNING_KEY_FILE="$here/signing.key" JIG_PRINCIPAL=key:reader "${example[@]}" "echo hello"
  check "a message with a wrong signature is rejected" 1 'JOB_STATE_FAILED' \
    env JIG_SIGNING_KEY_FILE="$here/keys.toml" JIG_PRINCIPAL=key:dev "${example[@]}" "echo hello"
  stop_part_daemon
  kill_nats_server
}

kill_nats_server() {
  if [[ -n $nats_server ]]; then
    kill -KILL "$nats_server" 2>/dev/null || true
    wait "$nats_server" 2>/dev/null || true
    nats_server=
  fi
}
