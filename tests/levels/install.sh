#!/usr/bin/env bash
# Installs the programs for the tests of levels: an OCI runtime for bundles, and Podman with runc
# for containers and pods.
set -euo pipefail

missing=()
for program in crun podman runc catatonit; do
  command -v "$program" >/dev/null || missing+=("$program")
done
"$(dirname "${BASH_SOURCE[0]}")/../../deploy/release/install-packages" "${missing[@]}"
