#!/usr/bin/env bash
# Clients of Connect and gRPC-Web, and the WebSocket client `ws`.
set -euo pipefail

try_http() {
  echo "HTTP clients on $address"
  local http=$tools/http here=$scratch/http
  mkdir "$here"
  cp tests/clients/http/client.mjs "$here"
  ln -s "$http/node_modules" "$here/node_modules"
  buf build --as-file-descriptor-set -o "$here/contract.binpb"
  check "Connect, gRPC-Web and WebSocket clients work" 0 '(^|[^0-9])9 passed, 0 failed$' node "$here/client.mjs" "$address" "$here/contract.binpb"
}
