#!/usr/bin/env bash
# Puts there what the tests of levels need: an OCI runtime for containers.
set -euo pipefail

missing=()
command -v crun >/dev/null || missing+=(crun)
if [[ ${#missing[@]} != 0 ]]; then
  echo "installing ${missing[*]}"
  apt-get install -y --no-install-recommends "${missing[@]}"
fi
