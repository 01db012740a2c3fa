#!/usr/bin/env bash
# Clients of the Kubernetes agent-sandbox runtime: its Python SDK, and a Go client generated from its published proto.
set -euo pipefail

try_agent_sandbox() {
  echo "agent-sandbox clients on $agent_sandbox_grpc and $agent_sandbox_rest"
  local here=$tools/agent_sandbox
  check "the Python SDK of agent-sandbox works" 0 '(^|[^0-9])14 passed, 0 failed$' \
    "$here/python/bin/python" tests/clients/agent_sandbox/client.py "$agent_sandbox_grpc" "$agent_sandbox_rest"
  check "a Go client of the published agent-sandbox proto works" 0 '(^|[^0-9])19 passed, 0 failed$' "$here/client" "$agent_sandbox_grpc" "$agent_sandbox_rest"
  check "reflection describes the process service" 0 'rpc ResizeTTY' grpcurl -plaintext "$agent_sandbox_grpc" describe process.v1.ProcessService.ResizeTTY
  check "grpcurl shows the details of an error" 67 'Code: InvalidArgument.*ErrorInfo.*"reason"' \
    grpcurl -plaintext -max-time 30 -d '{}' "$agent_sandbox_grpc" process.v1.ProcessService/Execute
  local rules='{"use": ["WIRE_JSON", "ENUM_VALUE_NO_DELETE", "FIELD_NO_DELETE", "RPC_NO_DELETE"]}'
  check "the proto of jig has all of the published one" 0 '^$' \
    buf breaking --config '{"version": "v2", "modules": [{"path": "proto"}], "breaking": '"$rules"'}' --against "$here/published.binpb"
}
