#!/usr/bin/env bash
# Puts the clients into the tools directory.
set -euo pipefail

grpcurl_version=v1.9.3
buf_version=1.75.0

install_tools() {
  if [[ ! -x $tools/bin/grpcurl ]]; then
    echo "installing grpcurl $grpcurl_version"
    GOBIN="$tools/bin" go install "github.com/fullstorydev/grpcurl/cmd/grpcurl@$grpcurl_version"
  fi
  if [[ ! -x $tools/node_modules/.bin/buf ]]; then
    echo "installing buf $buf_version"
    npm install --no-save --no-audit --no-fund --loglevel=error --prefix "$tools" "@bufbuild/buf@$buf_version"
  fi
}
