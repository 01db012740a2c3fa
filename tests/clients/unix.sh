#!/usr/bin/env bash
# Clients that send a Unix socket's path as authority: gRPC's C core (by Python) and grpc-java.
set -euo pipefail

try_unix() {
  echo "clients that send their socket's path, on $socket"
  local unix=$tools/unix
  check "Python's client takes the socket without an option" 0 '^SERVING$' "$unix/python/bin/python" tests/clients/unix/health.py "$socket"
  check "Java's client takes the socket without an option" 0 '(^|[[:space:]])SERVING$' java -cp "$unix/java/*" tests/clients/unix/Health.java "$socket"
}
