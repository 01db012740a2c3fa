#!/usr/bin/env bash
# grpcurl: a client that gets the contract through reflection only.
set -euo pipefail

try_grpcurl() {
  echo "grpcurl on $address"
  local call=(grpcurl -plaintext -max-time 30)
  local services=jig.v1.ToolService methods=jig.v1.ToolService.Run

  check "list names every service" 0 \
    'grpc\.health\.v1\.Health.*grpc\.reflection\.v1\.S.*grpc\.reflection\.v1alpha\.S.*jig\.v1\.ArtifactService.*jig\.v1\.DaemonService.*jig\.v1\.ToolService' \
    "${call[@]}" "$address" list
  check "list names the tools" 0 "ToolService\.ListFiles.*ToolService\.ReadFile.*ToolService\.Run" "${call[@]}" "$address" list "$services"
  check "describe shows comments and the options of tools" 0 '// Runs one command in its own sandbox.*name: "run"' \
    "${call[@]}" "$address" describe "$methods"
  check "describe shows the comments of fields" 0 '// Shell command, executed by `/bin/sh -c`\.' "${call[@]}" "$address" describe jig.v1.RunRequest
  local version
  for version in v1 v1alpha; do
    check "reflection $version answers" 0 '"name": "jig\.v1\.ToolService"' \
      "${call[@]}" -d '{"list_services": ""}' "$address" "grpc.reflection.$version.ServerReflection/ServerReflectionInfo"
  done

  check "health of the daemon" 0 '"status": "SERVING"' "${call[@]}" "$address" grpc.health.v1.Health/Check
  check "health of one service" 0 '"status": "SERVING"' \
    "${call[@]}" -d '{"service": "jig.v1.ToolService"}' "$address" grpc.health.v1.Health/Check
  check "health of an unknown service is NotFound" 69 'NotFound' "${call[@]}" -d '{"service": "none"}' "$address" grpc.health.v1.Health/Check
  check "GetInfo reports the isolation level" 0 '"level": "L3"' "${call[@]}" "$address" jig.v1.DaemonService/GetInfo

  check "a command runs, and exit code 0 is printed" 0 '"outcome": "OUTCOME_EXITED".*"exitCode": 0.*"stdout": "hello\\n".*"isolation": "L3"' \
    "${call[@]}" -d '{"command": "echo hello"}' "$address" jig.v1.ToolService/Run
  check "a command that fails is a result" 0 '"exitCode": 3' "${call[@]}" -d '{"argv": ["sh", "-c", "exit 3"]}' "$address" jig.v1.ToolService/Run
  check "a command that takes too long is a result" 0 '"outcome": "OUTCOME_TIMED_OUT"' \
    "${call[@]}" -d '{"command": "sleep 60", "timeoutSec": 1}' "$address" jig.v1.ToolService/Run
  check "a file is read by lines" 0 '"content": "two\\nthree\\n".*"totalLines": 3' \
    "${call[@]}" -d '{"path": "lines.txt", "startLine": 2}' "$address" jig.v1.ToolService/ReadFile
  check "files are listed" 0 '"files": \[.*"lines\.txt".*"proto/jig/v1/tool_service\.proto"' "${call[@]}" "$address" jig.v1.ToolService/ListFiles
  check "the output of a command is streamed" 0 '"data": "aGVsbG8K"' bash -euo pipefail -c '
    run() { grpcurl -plaintext -max-time 30 -H "jig-session: artifacts" "$@"; }
    path=$(run -d "{\"command\": \"echo hello\"}" "$0" jig.v1.ToolService/Run | sed -n "s/.*\"stdoutPath\": \"\(.*\)\".*/\1/p")
    run -d "{\"path\": \"$path\"}" "$0" jig.v1.ArtifactService/ReadArtifact' "$address"

  # The exit status of grpcurl is 64 + the gRPC status.
  check "an error names its reason" 69 'Code: NotFound.*ErrorInfo.*"domain": "jig\.v1".*"reason": "FILE_NOT_FOUND"' \
    "${call[@]}" -d '{"path": "nothing"}' "$address" jig.v1.ToolService/ReadFile
  check "an error names invalid fields" 67 'Code: InvalidArgument.*BadRequest.*"field": "max_results"' \
    "${call[@]}" -d '{"maxResults": 0}' "$address" jig.v1.ToolService/ListFiles
  check "a deadline ends the call" 68 'DeadlineExceeded' \
    grpcurl -plaintext -max-time 1 -d '{"command": "sleep 60"}' "$address" jig.v1.ToolService/Run
  check "all this works on the Unix socket" 0 '"stdout": "hello\\n"' \
    "${call[@]}" -d '{"command": "echo hello"}' "unix:$socket" jig.v1.ToolService/Run
}
