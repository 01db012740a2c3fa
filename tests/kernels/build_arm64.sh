#!/usr/bin/env bash
# Builds for arm64, with cargo's COMMAND: build_arm64.sh COMMAND [ARGUMENT...]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tests/deploy/tools.sh
unset_variables_of_cargo

# shellcheck source=deploy/release/cross-environment
source deploy/release/cross-environment
exec cargo "$1" --locked --target aarch64-unknown-linux-musl "${@:2}"
