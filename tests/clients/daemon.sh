#!/usr/bin/env bash
# Starts the daemon and ends it.
set -euo pipefail

jigd=${CARGO_TARGET_DIR:-target}/debug/jigd
daemon=

# Starts jigd with a workspace of its own and waits until it listens. Sets `daemon` (process id), `address` (of the port) and `socket` (its path).
start_daemon() {
  local line
  mkdir "$scratch/workspace"
  # The examples of the documentation are written for a daemon that serves this repository.
  cp -r README.md Cargo.toml proto "$scratch/workspace"
  printf 'one\ntwo\nthree\n' >"$scratch/workspace/lines.txt"
  socket=$scratch/jig.sock

  mkfifo "$scratch/stdout"
  "$jigd" --listen 127.0.0.1:0 --listen "unix:$socket" --workspace "$scratch/workspace" --state-dir "$scratch/state" --config tests/clients/tools.toml --log text \
    >"$scratch/stdout" 2>"$scratch/log" &
  daemon=$!
  exec {printed}<"$scratch/stdout"
  address=
  for _ in 1 2; do
    if ! read -r -t 30 -u "$printed" line; then
      echo "jigd did not say that it listens; its log:"
      cat "$scratch/log"
      exit 1
    fi
    case $line in
      "listening on unix:"*) check "the Unix socket is where it was asked for" 0 "^listening on unix:$socket\$" echo "$line" ;;
      "listening on "*) address=${line#listening on } ;;
      *) check "jigd prints only what it listens on" 0 "^listening on " echo "$line" ;;
    esac
  done
  check "the port is one that was free" 0 '^127\.0\.0\.1:[1-9][0-9]*$' echo "$address"
}

# Ends jigd as an operator does and looks for what it left.
stop_daemon() {
  local status=0 processes
  processes=$(descendants "$daemon")
  check "jigd has helper processes while it runs" 0 '[0-9]' echo "$processes"
  kill -TERM "$daemon"
  # A daemon that does not end is killed, and then its status is not 0.
  timeout 40 tail --pid="$daemon" -f /dev/null || kill -KILL "$daemon"
  wait "$daemon" || status=$?
  daemon=
  check "jigd ends with status 0 after SIGTERM" 0 '^0$' echo "$status"
  # They die with jigd; whoever is process 1 here may need a moment to collect them.
  check "no process is left" 0 '^$' bash -c 'for _ in {1..100}; do left=$(ps -o pid=,stat=,args= -p "$0") || exit 0; sleep 0.1; done; echo "$left"; exit 1' \
    "$(paste -sd, <<<"$processes")"
  check "no socket is left" 1 '' test -e "$socket"
  check "no mount is left" 1 '^$' grep -F "$scratch" /proc/self/mountinfo
  if [[ $failed != 0 ]]; then
    echo "the daemon's log:"
    cat "$scratch/log"
  fi
}

# For the way out when something went wrong.
kill_daemon() {
  if [[ -n $daemon ]]; then
    kill -KILL "$daemon" 2>/dev/null || true
  fi
}

# Ids of all processes below a process.
descendants() {
  local child
  for child in $(pgrep -P "$1" || true); do
    echo "$child"
    descendants "$child"
  done
}
