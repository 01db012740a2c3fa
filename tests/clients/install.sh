#!/usr/bin/env bash
# Installs the clients into the tools directory.
set -euo pipefail

grpcurl_version=v1.9.3
buf_version=1.75.0
ghz_version=v0.121.0
health_probe_version=v0.4.61
connect_go_version=v1.21.1
protobuf_go_version=v1.36.12
h2spec_version=v2.2.1+incompatible
protoc_gen_go_grpc_version=v1.6.2

install_tools() {
  install_go_program grpcurl github.com/fullstorydev/grpcurl/cmd/grpcurl "$grpcurl_version"
  install_go_program ghz github.com/bojand/ghz/cmd/ghz "$ghz_version"
  install_go_program grpc-health-probe github.com/grpc-ecosystem/grpc-health-probe "$health_probe_version"
  install_go_program protoc-gen-connect-go connectrpc.com/connect/cmd/protoc-gen-connect-go "$connect_go_version"
  install_go_program protoc-gen-go google.golang.org/protobuf/cmd/protoc-gen-go "$protobuf_go_version"
  tests/fleet/install.sh
  install_go_program h2spec github.com/summerwind/h2spec/cmd/h2spec "$h2spec_version"
  # Node trusts only its bundled certificate authorities. A proxy with its own authority needs those of the system too.
  local system=/etc/ssl/certs/ca-certificates.crt
  if [[ -z ${NODE_EXTRA_CA_CERTS:-} && -r $system ]]; then
    export NODE_EXTRA_CA_CERTS=$system
  fi
  if [[ ! -x $tools/node_modules/.bin/buf ]]; then
    echo "installing buf $buf_version"
    timeout 300 npm install --no-save --no-audit --no-fund --loglevel=error --prefix "$tools" "@bufbuild/buf@$buf_version"
  fi
  # The packages of model vendors, and a client of NATS.
  install_packages schemas sdks
  # What builds and checks the Python package.
  install_packages python
  # The frameworks of the adapters, and what checks their types.
  install_packages adapters
  # What builds and checks the TypeScript package.
  install_packages ../../client/typescript typescript
  # gRPC for Python, which uses the C core, and for Java.
  install_packages unix
  # The official SDKs of MCP, its inspector and its conformance suite. The suite needs a newer Node than the others.
  install_packages mcp
  # Clients of Connect, gRPC-Web and WebSockets.
  install_packages http
  install_agent_sandbox
  install_chromium
}

# Installs the browser of the system, which has no copy in the tools directory.
install_chromium() {
  command -v chromium >/dev/null || deploy/release/install-packages chromium
}

# install_packages NAME [TO]: installs the packages that the files of tests/clients/NAME list, into a directory of their own: npm removes files that it
# did not install.
install_packages() {
  local from=tests/clients/$1 to=$tools/${2:-$1} list lists=()
  for list in package.json requirements.txt pom.xml; do
    if [[ -e $from/$list ]]; then
      lists+=("$from/$list")
    fi
  done
  # This file is written last: it marks a complete installation.
  if cat "${lists[@]}" | cmp -s - "$to/installed"; then
    return
  fi

  echo "installing the packages of $from"
  rm -rf "$to"
  mkdir "$to"
  for list in "${lists[@]##*/}"; do
    case $list in
      package.json)
        cp "$from/$list" "$to"
        timeout 300 npm install --no-audit --no-fund --ignore-scripts --loglevel=error --prefix "$to"
        ;;
      requirements.txt)
        python3 -m venv "$to/python"
        timeout 300 "$to/python/bin/pip" install --quiet --disable-pip-version-check --requirement "$from/$list"
        ;;
      pom.xml) timeout 600 mvn --quiet --batch-mode --file "$from/$list" dependency:copy-dependencies "-DoutputDirectory=$to/java" ;;
    esac
  done
  cat "${lists[@]}" >"$to/installed"
}

# Builds a Go client from the proto that the Python SDK of agent-sandbox carries.
install_agent_sandbox() {
  install_packages agent_sandbox
  install_go_program protoc-gen-go-grpc google.golang.org/grpc/cmd/protoc-gen-go-grpc "$protoc_gen_go_grpc_version"
  local from=tests/clients/agent_sandbox here=$tools/agent_sandbox
  if cat "$from"/* | cmp -s - "$here/built"; then
    return
  fi
  echo "building the Go client of agent-sandbox"
  "$here/python/bin/python" "$from/descriptors.py" "$here/published.binpb"
  rm -rf "$here/go"
  mkdir "$here/go"
  cp "$from/client.go" "$from/go.mod" "$from/go.sum" "$here/go"
  local options='["paths=source_relative", "Mprocess/v1/process.proto=agentsandbox/process/v1"]'
  local plugins='{"local": "protoc-gen-go", "out": ".", "opt": '"$options"'}, {"local": "protoc-gen-go-grpc", "out": ".", "opt": '"$options"'}'
  buf generate "$here/published.binpb" --path process/v1 --template '{"version": "v2", "plugins": ['"$plugins"']}' --output "$here/go"
  (cd "$here/go" && GOFLAGS=-mod=readonly timeout 600 go build -o ../client .)
  cat "$from"/* >"$here/built"
}
