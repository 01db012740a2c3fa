#!/usr/bin/env bash
# Connect's client for Go, with code that its generators make from the protos.
set -euo pipefail

try_connect_go() {
  echo "Connect's client for Go on $address"
  local here=$scratch/connect_go
  mkdir "$here"
  cp tests/clients/connect_go/{go.mod,go.sum,main.go} "$here"
  check "buf generates a Go client" 0 '^$' buf generate --template tests/clients/connect_go/buf.gen.yaml --output "$here"
  check "the Go client compiles" 0 '' go build -C "$here" -o client .
  check "Connect, gRPC-Web and gRPC work in Go" 0 '(^|[^0-9])7 passed, 0 failed$' "$here/client" "$address"
}
