#!/usr/bin/env bash
# Compares the names of telemetry with the published model of the semantic conventions.
#
# tests/deploy/run sets `tools` and `scratch`.
# shellcheck disable=SC2154
set -euo pipefail

# Names of 1.45, and which of them are deprecated.
semconv_npm=1.45.0
# Kinds and units of metrics, which the package above omits. Generated from 1.44.
semconv_pypi=0.66b2
# The GenAI conventions, which left the model in 1.42.
semconv_genai=1.3b0

install_semconv() {
  model=$tools/semconv-$semconv_npm-$semconv_pypi-$semconv_genai
  if [[ -e $model/complete ]]; then
    return
  fi
  echo "installing the model of the semantic conventions $semconv_npm"
  rm -rf "$model"
  mkdir -p "$model"
  npm pack --silent --pack-destination "$scratch" "@opentelemetry/semantic-conventions@$semconv_npm" >/dev/null
  tar -xzf "$scratch/opentelemetry-semantic-conventions-$semconv_npm.tgz" -C "$model"
  python3 -m pip install --quiet --no-deps --root-user-action=ignore --target "$model/python" \
    "opentelemetry-semantic-conventions==$semconv_pypi" "opentelemetry-util-genai==$semconv_genai"
  touch "$model/complete"
}

try_semconv() {
  local compare=tests/deploy/semconv/compare.py copy=$scratch/semconv.rs
  check 'names, kinds and units are those of the published model' 0 '[0-9]{2} attributes and [0-9]+ metrics' \
    python3 "$compare" "$model" daemon/telemetry/semconv.rs daemon/telemetry/resource.rs docs/telemetry.md

  # The comparison finds what it looks for.
  sed 's/"rpc.status_code"/"rpc.grpc.status_code"/' daemon/telemetry/semconv.rs >"$copy"
  check 'a deprecated attribute is found' 1 'rpc.grpc.status_code: deprecated' \
    python3 "$compare" "$model" "$copy" daemon/telemetry/resource.rs docs/telemetry.md
  sed 's/"gen_ai.tool.call.result"/"gen_ai.tool.call.output"/' daemon/telemetry/semconv.rs >"$copy"
  check 'an unknown attribute is found' 1 'gen_ai.tool.call.output: not in the model' \
    python3 "$compare" "$model" "$copy" daemon/telemetry/resource.rs docs/telemetry.md
  # shellcheck disable=SC2016  # The page has backquotes.
  sed 's/| `process.uptime` | gauge | `s` |/| `process.uptime` | gauge | `ms` |/' docs/telemetry.md >"$scratch/telemetry.md"
  check 'a wrong unit is found' 1 'process.uptime: gauge in ms, but the model has gauge in s' \
    python3 "$compare" "$model" daemon/telemetry/semconv.rs daemon/telemetry/resource.rs "$scratch/telemetry.md"
}
