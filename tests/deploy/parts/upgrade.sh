#!/usr/bin/env bash
# The version before on a state of today, and the other way round; old clients with new daemons, and new ones with old.
set -euo pipefail

# Until there is a release: the last commit whose database has the version before the current one.
before=b8d05c9a15bef19c751e318b71ccd3ce4df8899f

install_upgrade() {
  # A build of all dependencies.
  [[ -n ${JIG_FULL:-} ]] || return 0
  if [[ ! -x $tools/before/debug/jigd ]]; then
    echo "building the version before ($before)"
    mkdir -p "$tools/before/source"
    git archive "$before" | tar -x -C "$tools/before/source"
    (cd "$tools/before/source" && CARGO_TARGET_DIR="$tools/before" cargo build --locked --bin jigd --bin jig)
  fi
  cargo build --locked --bin jigd --bin jig
}

# serve PROGRAM LOG: starts a daemon on $state. Sets `daemon` (process id) and `listening` (whether it answers).
serve() {
  "$1" --listen "unix:$scratch/upgrade.sock" --workspace "$scratch/upgrade" --state-dir "$state" --log text >"$scratch/started" 2>"$2" &
  daemon=$!
  listening=no
  for _ in {1..300}; do
    grep -q '^listening on ' "$scratch/started" && listening=yes && break
    kill -0 "$daemon" 2>/dev/null || break
    sleep 0.1
  done
}

stop_serving() {
  kill -TERM "$daemon" 2>/dev/null || true
  wait "$daemon" || true
}

try_upgrade() {
  if [[ -z ${JIG_FULL:-} ]]; then
    echo "upgrade: the version before is built and run with JIG_FULL=1 only"
    return
  fi
  local state=$scratch/state old=$tools/before/debug new=${CARGO_TARGET_DIR:-target}/debug daemon listening job
  mkdir "$scratch/upgrade"
  export JIG_ADDRESS=unix:$scratch/upgrade.sock

  serve "$old/jigd" "$scratch/log"
  check "the version before serves" 0 '^yes$' echo "$listening"
  check "a new client runs a command with an old daemon" 0 '^ran' "$new/jig" run 'echo ran'
  check "a new client reads the version of an old daemon" 0 '0\.1\.0' "$new/jig" info
  job=$("$old/jig" job submit run command='echo from the version before')
  check "the version before runs a job" 0 'from the version before' "$old/jig" job wait "$job"
  stop_serving

  serve "$new/jigd" "$scratch/log"
  check "the new version serves the state of the version before" 0 '^yes$' echo "$listening"
  check "the new version has the job of the version before" 0 'from the version before' "$new/jig" job wait "$job"
  check "an old client runs a command with a new daemon" 0 '^ran' "$old/jig" run 'echo ran'
  stop_serving

  serve "$old/jigd" "$scratch/log"
  check "the version before does not serve the state of the new version" 0 '^no$' echo "$listening"
  check "the version before says why, and what to do" 0 'newer jigd.*schema.*--state-dir' cat "$scratch/log"
  stop_serving

  serve "$new/jigd" "$scratch/log"
  check "the new version still has the job" 0 'from the version before' "$new/jig" job wait "$job"
  stop_serving
}
