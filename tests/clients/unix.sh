#!/usr/bin/env bash
# Clients that send the path of the Unix socket as authority: gRPC's C core (through Python) and grpc-java.
set -euo pipefail

try_unix() {
  echo "clients that send the socket path as authority, on $socket"
  local unix=$tools/unix
  check "the Python client works on the socket without an option" 0 '^SERVING$' "$unix/python/bin/python" tests/clients/unix/health.py "$socket"
  check "the Java client works on the socket without an option" 0 '(^|[[:space:]])SERVING$' java -cp "$unix/java/*" tests/clients/unix/Health.java "$socket"
}
