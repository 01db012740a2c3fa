#!/usr/bin/env bash
# Puts the clients into the tools directory.
set -euo pipefail

grpcurl_version=v1.9.3
buf_version=1.75.0

install_tools() {
  if [[ ! -x $tools/bin/grpcurl ]]; then
    echo "installing grpcurl $grpcurl_version"
    GOBIN="$tools/bin" timeout 900 go install "github.com/fullstorydev/grpcurl/cmd/grpcurl@$grpcurl_version"
  fi
  if [[ ! -x $tools/node_modules/.bin/buf ]]; then
    echo "installing buf $buf_version"
    # Node trusts the authorities that it brings along; behind a proxy with one of its own, those of the system are needed too.
    local system=/etc/ssl/certs/ca-certificates.crt
    if [[ -z ${NODE_EXTRA_CA_CERTS:-} && -r $system ]]; then
      export NODE_EXTRA_CA_CERTS=$system
    fi
    timeout 300 npm install --no-save --no-audit --no-fund --loglevel=error --prefix "$tools" "@bufbuild/buf@$buf_version"
  fi
}
