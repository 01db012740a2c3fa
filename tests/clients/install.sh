#!/usr/bin/env bash
# Installs the clients into the tools directory.
set -euo pipefail

grpcurl_version=v1.9.3
buf_version=1.75.0

install_tools() {
  if [[ ! -x $tools/bin/grpcurl ]]; then
    echo "installing grpcurl $grpcurl_version"
    GOBIN="$tools/bin" timeout 900 go install "github.com/fullstorydev/grpcurl/cmd/grpcurl@$grpcurl_version"
  fi
  # Node trusts only its bundled certificate authorities. A proxy with its own authority needs those of the system too.
  local system=/etc/ssl/certs/ca-certificates.crt
  if [[ -z ${NODE_EXTRA_CA_CERTS:-} && -r $system ]]; then
    export NODE_EXTRA_CA_CERTS=$system
  fi
  if [[ ! -x $tools/node_modules/.bin/buf ]]; then
    echo "installing buf $buf_version"
    timeout 300 npm install --no-save --no-audit --no-fund --loglevel=error --prefix "$tools" "@bufbuild/buf@$buf_version"
  fi
  install_sdks
  install_unix
  install_mcp
  install_http
}

# Installs the packages of model vendors with npm and pip, into their own directory: npm removes files that it did not install.
install_sdks() {
  local from=tests/clients/schemas sdks=$tools/sdks
  # This file is written last: it marks a complete installation.
  if cat "$from/package.json" "$from/requirements.txt" | cmp -s - "$sdks/installed"; then
    return
  fi
  echo "installing the packages of model vendors"
  rm -rf "$sdks"
  mkdir "$sdks"
  cp "$from/package.json" "$sdks"
  timeout 300 npm install --no-audit --no-fund --ignore-scripts --loglevel=error --prefix "$sdks" &
  local npm=$!
  python3 -m venv "$sdks/python"
  timeout 300 "$sdks/python/bin/pip" install --quiet --disable-pip-version-check --requirement "$from/requirements.txt"
  wait "$npm"
  cat "$from/package.json" "$from/requirements.txt" >"$sdks/installed"
}

# Installs gRPC for Python, which uses the C core, and for Java.
install_unix() {
  local from=tests/clients/unix unix=$tools/unix
  if cat "$from/pom.xml" "$from/requirements.txt" | cmp -s - "$unix/installed"; then
    return
  fi
  echo "installing gRPC for Python and Java"
  rm -rf "$unix"
  mkdir "$unix"
  python3 -m venv "$unix/python"
  timeout 300 "$unix/python/bin/pip" install --quiet --disable-pip-version-check --requirement "$from/requirements.txt"
  timeout 600 mvn --quiet --batch-mode --file "$from/pom.xml" dependency:copy-dependencies "-DoutputDirectory=$unix/java"
  cat "$from/pom.xml" "$from/requirements.txt" >"$unix/installed"
}

# Installs the official SDKs of MCP, its inspector and its conformance suite. The suite needs a newer Node than the others.
install_mcp() {
  local from=tests/clients/mcp mcp=$tools/mcp
  if cat "$from/package.json" "$from/requirements.txt" | cmp -s - "$mcp/installed"; then
    return
  fi
  echo "installing MCP clients"
  rm -rf "$mcp"
  mkdir "$mcp"
  cp "$from/package.json" "$mcp"
  timeout 300 npm install --no-audit --no-fund --ignore-scripts --loglevel=error --prefix "$mcp"
  python3 -m venv "$mcp/python"
  timeout 300 "$mcp/python/bin/pip" install --quiet --disable-pip-version-check --requirement "$from/requirements.txt"
  cat "$from/package.json" "$from/requirements.txt" >"$mcp/installed"
}

# Installs clients of Connect, gRPC-Web and WebSockets.
install_http() {
  local from=tests/clients/http http=$tools/http
  if cmp -s "$from/package.json" "$http/installed"; then
    return
  fi
  echo "installing HTTP clients"
  rm -rf "$http"
  mkdir "$http"
  cp "$from/package.json" "$http"
  timeout 300 npm install --no-audit --no-fund --ignore-scripts --loglevel=error --prefix "$http"
  cp "$from/package.json" "$http/installed"
}
