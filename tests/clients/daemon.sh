#!/usr/bin/env bash
# Starts and stops the daemon.
set -euo pipefail

jigd=${CARGO_TARGET_DIR:-target}/debug/jigd
daemon=
part_daemon=

# Starts jigd with its own workspace and waits until it listens. Sets `daemon` (process id), `address` (host and port), `socket` (path), and
# `agent_sandbox_grpc` and `agent_sandbox_rest` (host and port).
start_daemon() {
  local line
  mkdir "$scratch/workspace"
  # The examples of the documentation expect a daemon that serves this repository.
  cp -r README.md Cargo.toml proto "$scratch/workspace"
  printf 'one\ntwo\nthree\n' >"$scratch/workspace/lines.txt"
  socket=$scratch/jig.sock

  mkfifo "$scratch/stdout"
  "$jigd" --listen 127.0.0.1:0 --listen "unix:$socket" --workspace "$scratch/workspace" --state-dir "$scratch/state" --config tests/clients/tools.toml --log text \
    >"$scratch/stdout" 2>"$scratch/log" &
  daemon=$!
  exec {printed}<"$scratch/stdout"
  address=
  agent_sandbox_grpc=
  agent_sandbox_rest=
  for _ in 1 2 3 4; do
    if ! read -r -t 30 -u "$printed" line; then
      echo "jigd did not report its addresses; its log:"
      cat "$scratch/log"
      exit 1
    fi
    case $line in
      "listening on unix:"*) check "jigd listens on the configured Unix socket" 0 "^listening on unix:$socket\$" echo "$line" ;;
      "listening on "*" for agent-sandbox gRPC") agent_sandbox_grpc=$(cut -d ' ' -f 3 <<<"$line") ;;
      "listening on "*" for agent-sandbox REST") agent_sandbox_rest=$(cut -d ' ' -f 3 <<<"$line") ;;
      "listening on "*) address=${line#listening on } ;;
      *) check "jigd prints only its addresses" 0 "^listening on " echo "$line" ;;
    esac
  done
  check "jigd listens on a free port" 0 '^127\.0\.0\.1:[1-9][0-9]*$' echo "$address"
}

# Stops jigd as an operator does, and checks that it left nothing behind.
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
  # The helpers die with jigd. Process 1 may need a moment to reap them.
  check "no process is left" 0 '^$' bash -c 'for _ in {1..100}; do left=$(ps -o pid=,stat=,args= -p "$0") || exit 0; sleep 0.1; done; echo "$left"; exit 1' \
    "$(paste -sd, <<<"$processes")"
  check "no socket is left" 1 '' test -e "$socket"
  check "no mount is left" 1 '^$' grep -F "$scratch" /proc/self/mountinfo
  if [[ $failed != 0 ]]; then
    echo "the daemon's log:"
    cat "$scratch/log"
  fi
}

# start_part_daemon NAME ARGUMENT...: starts a daemon for one part of the checks, with the existing directory $scratch/NAME. Sets `part_daemon` (process
# id) and `part_address` (host and port).
start_part_daemon() {
  local directory=$scratch/$1 line=
  shift
  mkdir "$directory/workspace"
  mkfifo "$directory/stdout"
  "$jigd" --listen 127.0.0.1:0 --workspace "$directory/workspace" --state-dir "$directory/state" --log text "$@" >"$directory/stdout" 2>"$directory/log" &
  part_daemon=$!
  read -r -t 30 line <"$directory/stdout" || true
  part_address=${line#listening on }
  if [[ -z $part_address ]]; then
    echo "jigd did not report its address; its log:"
    cat "$directory/log"
    exit 1
  fi
}

stop_part_daemon() {
  local status=0
  kill -TERM "$part_daemon" 2>/dev/null || true
  wait "$part_daemon" || status=$?
  part_daemon=
  check "the daemon ends with status 0" 0 '^0$' echo "$status"
}

# Kills the daemons if the run ends early.
kill_daemon() {
  local process
  for process in $daemon $part_daemon; do
    kill -KILL "$process" 2>/dev/null || true
  done
}

# Ids of all processes below a process.
descendants() {
  local child
  for child in $(pgrep -P "$1" || true); do
    echo "$child"
    descendants "$child"
  done
}
