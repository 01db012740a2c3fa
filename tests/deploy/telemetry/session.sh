#!/usr/bin/env bash
# A daemon with telemetry, and a session of calls that gives every documented metric and attribute of a span a value.
set -euo pipefail

jigd=${CARGO_TARGET_DIR:-target}/debug/jigd
jig=${CARGO_TARGET_DIR:-target}/debug/jig
# Ids of the traces that the session continues.
run_trace=11111111111111111111111111111111
exit_trace=22222222222222222222222222222222
egress_trace=33333333333333333333333333333333
parent_span=00f067aa0ba902b7
# Processes of the parts on telemetry, by name.
declare -A running=()

install_session() {
  deploy/release/install-packages curl iproute2 openssl python3
  source tests/clients/install.sh
  install_go_program grpcurl github.com/fullstorydev/grpcurl/cmd/grpcurl "$grpcurl_version"
  cargo build --locked --bin jigd --bin jig
  trap end_all EXIT
}

# end NAME: ends a process and waits for it.
end() {
  kill -CONT "${running[$1]}" 2>/dev/null || true
  kill -TERM "${running[$1]}" 2>/dev/null || true
  wait "${running[$1]}" || true
  unset "running[$1]"
}

end_all() {
  local name
  for name in "${!running[@]}"; do
    end "$name"
  done
}

# wait_for FILE PATTERN: waits until a line of the file matches, and prints the match.
wait_for() {
  local _
  for _ in {1..300}; do
    if grep -oE -m 1 "$2" "$1" 2>/dev/null; then
      return
    fi
    sleep 0.1
  done
  echo "no line of $1 matches $2:" >&2
  cat "$1" >&2
  exit 1
}

# free_ports COUNT: ports on which nothing listens now.
free_ports() {
  python3 -c 'import socket, sys
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(s.getsockname()[1] for s in sockets))' "$1"
}

# start_telemetry_daemon NAME [VARIABLE=VALUE...]: starts a daemon in the new directory $scratch/NAME, with the directory of configuration
# $scratch/configuration. Sets `address`, `metrics_address`, `health_address`, `here` (the directory) and `key`.
start_telemetry_daemon() {
  local web_port
  local configuration=$scratch/configuration
  here=$scratch/$1
  mkdir -p "$here/workspace" "$here/audit" "$configuration"
  python3 -u -m http.server --bind 127.0.0.1 --directory "$here/workspace" 0 >"$here/web" 2>&1 &
  running[web]=$!
  web_port=$(wait_for "$here/web" 'port [0-9]+' | cut -d ' ' -f 2)
  cat >"$configuration/$1.toml" <<TOML
[sandbox]
network = "proxy"

[proxy]
allow_hosts = ["localhost:$web_port"]
allow_addresses = ["127.0.0.1", "::1"]

[limits]
concurrent_processes = 1
concurrent_calls = 4
queued_calls = 1

[[policy.rules]]
name = "no-secrets"
tool = "read_file"
pattern = '"path":"secret"'
action = "deny"

[[policy.rules]]
name = "deployments"
tool = "run"
pattern = 'deploy'
action = "ask"

# No server is there.
[fleet]
nats = ["nats://127.0.0.1:1"]

[[fleet.queues]]
name = "build"
key = "tester"
workspaces = ["project"]
TOML
  web=http://localhost:$web_port
  key=$("$jig" key --keys "$configuration/$1.keys.toml" new tester --role admin 2>/dev/null)

  env OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=test JIG_AUDIT_LOG="$here/audit/audit.jsonl" JIG_CAPTURE_CONTENT=truncated "${@:2}" \
    "$jigd" --listen 127.0.0.1:0 --metrics-listen 127.0.0.1:0 --health-listen 127.0.0.1:0 \
    --workspace "project=$here/workspace" --state-dir "$here/state" --config "$configuration/$1.toml" --keys "$configuration/$1.keys.toml" \
    --audit-log "$configuration/$1.audit.jsonl" --capture-content truncated \
    --log json --log-calls >"$here/stdout" 2>"$here/log" &
  running[jigd]=$!
  address=$(wait_for "$here/stdout" '^listening on .*' | cut -d ' ' -f 3)
  health_address=$(wait_for "$here/stdout" '^health.* on .*' | grep -oE '[0-9.]+:[0-9]+')
  metrics_address=$(wait_for "$here/stdout" '^metrics on .*' | cut -d ' ' -f 3)
  # For `call`.
  export address key parent_span jig
}

stop_telemetry_daemon() {
  local status=0
  kill -TERM "${running[jigd]}"
  wait "${running[jigd]}" || status=$?
  unset "running[jigd]"
  end web
  check "jigd ends with status 0" 0 '^0$' echo "$status"
}

# Calls a method by JSON (Connect), with further arguments of curl.
connect() {
  curl --silent --show-error --max-time 30 -H "authorization: Bearer $key" -H 'content-type: application/json' "${@:3}" --data "$2" "http://$address/$1"
}

# Grpcurl calls no method that reflection does not list.
unknown_method() {
  curl --silent --show-error --max-time 30 --include --http2-prior-knowledge --request POST -H "authorization: Bearer $key" \
    -H 'content-type: application/grpc' "http://$address/jig.v1.ToolService/NoSuchMethod"
}

# traced TRACE REQUEST: calls `Run` with grpcurl as part of a trace.
traced() {
  grpcurl -plaintext -max-time 30 -H "authorization: Bearer $key" -H "traceparent: 00-$1-$parent_span-01" -H 'jig-session: traced' -d "$2" \
    "$address" jig.v1.ToolService/Run
}

# call NAME STATUS PATTERN FUNCTION...: a check whose command is a function of this file.
call() {
  export -f "${4?}"
  check "${@:1:3}" bash -euo pipefail -c '"$@"' bash "${@:4}"
}

# Makes calls of every kind.
run_session() {
  export JIG_ADDRESS=$address JIG_KEY=$key
  call "a command runs, in a trace" 0 '"stdout": "hello' traced $run_trace '{"command": "echo hello"}'
  call "a command fails, in a trace" 0 '"exitCode": 3' traced $exit_trace '{"argv": ["sh", "-c", "exit 3"]}'
  call "a command uses the proxy, in a trace" 0 'hello.*rejected|403|denied' traced $egress_trace \
    "{\"command\": \"echo hello >file; curl -sS --noproxy none $web/file; curl -sS http://denied.example/ || echo rejected\"}"

  check "a command times out" 124 '' "$jig" run --timeout 1 -- sleep 60
  check "a command exceeds the limit of memory" 137 '' "$jig" run --limit memory=32M -- sh -c 'head -c 500000000 /dev/zero | tail'
  check "a command exceeds the limit of output" 137 '' "$jig" run --limit output=1024 -- yes
  check "a command has a limit of CPU time" 0 '' "$jig" run --limit cpu=10 -- true
  check "a program is missing" 125 'no-such-program' "$jig" run -- no-such-program
  call "a command outlives the deadline of its caller" 0 'deadline_exceeded' connect jig.v1.ToolService/Run '{"command": "sleep 60"}' \
    -H 'connect-timeout-ms: 500'

  check "a file is written" 0 '' bash -c 'echo one >"$0/one" && "$1" write notes.txt <"$0/one"' "$here" "$jig"
  check "a directory is created under a request id" 0 '' "$jig" --request-id notes-1 mkdir notes
  check "a file is read" 0 '^one$' "$jig" read notes.txt
  check "files are searched" 0 'notes\.txt' "$jig" search one
  check "a file is patched" 0 '' bash -c 'printf "%s\n" "--- a/notes.txt" "+++ b/notes.txt" "@@ -1 +1 @@" "-one" "+two" | "$0" patch' "$jig"
  check "a file is missing" 1 'FILE_NOT_FOUND|no file' "$jig" read missing
  check "a rule denies a call" 1 'denie' "$jig" read secret
  check "a caller has no key" 1 'Unauthenticated' grpcurl -plaintext -max-time 30 "$address" jig.v1.DaemonService/GetInfo

  call "an administrator approves a call" 0 'deployed' decide allow
  call "an administrator denies a call" 125 "APPROVAL_DENIED" decide deny
  check "a job runs" 0 'done' "$jig" job submit run 'command=echo done' --wait
  check "a batch in a dialect runs" 0 'batched' "$jig" batch --dialect rauskuclaw - < <(
    echo '{"calls": [{"call_id": "a", "name": "tool_exec", "arguments": {"command": "echo batched"}}]}'
  )
  check "MCP calls a tool of a dialect" 0 'from mcp' curl --silent --show-error --max-time 30 "http://$address/mcp/claude" -H "authorization: Bearer $key" \
    -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' -H 'MCP-Protocol-Version: 2026-07-28' \
    -H 'Mcp-Method: tools/call' -H 'Mcp-Name: Bash' --data '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "Bash",
      "arguments": {"command": "echo from mcp"}, "_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
      "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"}, "io.modelcontextprotocol/clientCapabilities": {}}}}'
  call "gRPC calls a method that does not exist" 0 'grpc-status: 12' unknown_method
  call "Connect calls a tool" 0 '"stdout":"hello' connect jig.v1.ToolService/Run '{"command": "echo hello"}'

  call "a process is killed, and another is rejected" 0 'RESOURCE_EXHAUSTED|concurren' kill_process
  call "calls are queued and rejected" 0 '^[1-9]' overload
}

# decide DECISION: makes a call that needs approval, and decides about it.
decide() {
  local id='' _
  "$jig" run 'echo deployed' &
  for _ in {1..100}; do
    id=$("$jig" approvals list --json | grep -oE '[0-9A-HJKMNP-TV-Z]{26}' | head -n 1 || true)
    if [[ -n $id ]]; then
      break
    fi
    sleep 0.1
  done
  "$jig" approvals decide "$id" "$1"
  wait $!
}

# Kills a process. While it runs, the daemon starts no other.
kill_process() {
  local id
  id=$("$jig" exec --detach sleep 60)
  "$jig" exec --detach sleep 60 || true
  "$jig" kill "$id"
  "$jig" attach "$id" || true
}

# Makes more calls than the daemon admits. Prints how many it rejected.
overload() {
  local pid processes=() rejected=0
  for _ in {1..10}; do
    "$jig" run 'sleep 1' >/dev/null 2>&1 &
    processes+=($!)
  done
  for pid in "${processes[@]}"; do
    wait "$pid" || rejected=$((rejected + 1))
  done
  echo "$rejected"
}
