#!/usr/bin/env bash
# buf: lints and builds the protos, and calls the daemon with another gRPC library, through both versions of reflection.
set -euo pipefail

try_buf() {
  echo "buf on $address"
  check "the protos follow buf's rules" 0 '^$' buf lint
  check "buf builds the protos" 0 '^$' buf build --output /dev/null

  # The contract before it had other protocols than gRPC.
  local baseline=86600b2
  if git cat-file -e "$baseline" 2>/dev/null; then
    mkdir "$scratch/baseline"
    git archive "$baseline" proto buf.yaml | tar -x -C "$scratch/baseline"
    check "the protos break no client of commit $baseline" 0 '^$' buf breaking --against "$scratch/baseline"
    sed -i 's/string path = 1/string path = 99/' "$scratch/baseline/proto/jig/v1/tool_service.proto"
    check "buf finds a field that changed its number" 100 'path' buf breaking --against "$scratch/baseline"
  else
    echo "left out: buf breaking, as this clone has no commit $baseline. Clone the whole history to run it"
  fi

  local call=(buf curl --protocol grpc --http2-prior-knowledge --reflect)
  local version
  for version in grpc-v1 grpc-v1alpha; do
    check "a command runs by reflection $version" 0 '"stdout": *"hello\\n"' \
      "${call[@]}" --reflect-protocol "$version" --data '{"command": "echo hello"}' "http://$address/jig.v1.ToolService/Run"
  done
  # buf does not decode the details of an error, but it names their types.
  check "an error has its code, message and details" 40 '"code": "not_found".*nothing.*"type": "google\.rpc\.ErrorInfo"' \
    "${call[@]}" --data '{"path": "nothing"}' "http://$address/jig.v1.ToolService/ReadFile"
}
