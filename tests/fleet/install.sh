#!/usr/bin/env bash
# Installs the NATS server of the fleet tests into $JIG_TOOLS_DIR/bin (default: target/tools/bin).
set -euo pipefail

nats_server_version=v2.15.3

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tools=${JIG_TOOLS_DIR:-target/tools}
mkdir -p "$tools/bin"
tools=$(cd "$tools" && pwd)

# The next process finds what this one has installed.
exec {lock}>"$tools/nats-server.lock"
flock "$lock"

source tests/deploy/tools.sh
install_go_program nats-server github.com/nats-io/nats-server/v2 "$nats_server_version"
