#!/usr/bin/env bash
# A session with grpcurl: files, commands, artifacts, jobs and records.
#
# Usage: grpcurl.sh [ADDRESS]. ADDRESS is 127.0.0.1:50051 or unix:/path. Needs grpcurl and jq.
set -euo pipefail

address=${1:-127.0.0.1:50051}
session=grpcurl-$$

# call METHOD [JSON]: calls one RPC in the session.
call() {
  grpcurl -plaintext -max-time 60 -H "jig-session: $session" -d "${2:-{\}}" "$address" "jig.v1.$1"
}

echo "== the daemon: level and health"
call DaemonService/GetInfo | jq '{version, level: .isolation.level}'
grpcurl -plaintext "$address" grpc.health.v1.Health/Check

echo "== files: write, edit on condition, read, search"
path=grpcurl-example/notes.txt
written=$(call ToolService/WriteFile "{\"path\": \"$path\", \"content\": \"one\ntwo\n\"}")
sha256=$(jq -r .sha256 <<<"$written")
call ToolService/EditFile "{
  \"path\": \"$path\",
  \"expectedSha256\": \"$sha256\",
  \"edits\": [{\"oldString\": \"two\", \"newString\": \"three\"}]
}" | jq -r .diff
call ToolService/ReadFile "{\"path\": \"$path\"}" | jq -r .content
call ToolService/Search '{"query": "three", "path": "grpcurl-example"}' | jq '.matches[0]'

echo "== a command: its exit code is part of the response"
call ToolService/Run '{"command": "seq 100000; exit 3", "timeoutSec": 10}' |
  jq '{outcome, exitCode, stdoutBytes, stdoutTruncated, stdoutPath}'

echo "== its whole output is an artifact"
output=$(call ArtifactService/ListArtifacts | jq -r '.artifacts[0].path')
call ArtifactService/ReadArtifact "{\"path\": \"$output\", \"limit\": 10}" | jq -r .data | base64 -d

echo "== a process: output as it comes"
call ProcessService/Start '{"command": "for i in 1 2 3; do echo $i; sleep 0.1; done"}' |
  jq -c 'keys'

echo "== a job, submitted twice with one idempotency key"
for _ in 1 2; do
  grpcurl -plaintext -H "jig-session: $session" -H "jig-request-id: $session" \
    -d '{"tool": "run", "paramsJson": "{\"command\": \"echo job\"}"}' \
    "$address" jig.v1.JobService/SubmitJob | jq -r .job.jobId
done

echo "== an error has a reason"
call ToolService/ReadFile '{"path": "missing.txt"}' 2>&1 | grep '"reason"' || true

echo "== what the session recorded"
call EventService/WatchEvents '{"follow": false}' | jq -c '.event | [.sequence, .type, .tool]'

call ToolService/DeletePath '{"path": "grpcurl-example", "recursive": true}'
