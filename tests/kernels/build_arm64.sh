#!/usr/bin/env bash
# Builds for arm64, with cargo's COMMAND: build_arm64.sh COMMAND [ARGUMENT...]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# Variables that cargo sets for tests and programs that it starts. They would make a build differ from that of a shell.
while read -r name; do
  case $name in
    CARGO_HOME | CARGO_TARGET_DIR | CARGO_TERM_* | CARGO_BUILD_* | CARGO_NET_* | CARGO_PROFILE_* | CARGO_INCREMENTAL) ;;
    *) unset "$name" ;;
  esac
done < <(compgen -v CARGO || true)

# shellcheck source=deploy/release/cross-environment
source deploy/release/cross-environment
exec cargo "$1" --locked --target aarch64-unknown-linux-musl "${@:2}"
