#!/usr/bin/env bash
# An agent in Python, with stubs from gRPC's own generator, in each dialect.
set -euo pipefail

try_agent() {
  echo "a scripted agent on $address"
  local python=$tools/sdks/python/bin/python stubs=$scratch/stubs
  mkdir "$stubs"
  check "gRPC's generator makes Python stubs" 0 '^$' "$python" -m grpc_tools.protoc -I proto --python_out "$stubs" --grpc_python_out "$stubs" proto/jig/v1/*.proto
  check "an agent reads all output, waits and repeats in each dialect" 0 '(^|[^0-9])24 passed, 0 failed$' env PYTHONPATH="$stubs" "$python" tests/clients/agent/agent.py "$address"
}
