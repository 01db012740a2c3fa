#!/usr/bin/env bash
# Builds the OpenTelemetry Collector of deploy/otel into $JIG_TOOLS_DIR/otelcol (default: target/tools/otelcol).
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
tools=${JIG_TOOLS_DIR:-target/tools}
mkdir -p "$tools/bin"
tools=$(cd "$tools" && pwd)
manifest=$PWD/deploy/otel/builder-config.yaml
# The file is written last: it marks a complete build.
if cmp -s "$manifest" "$tools/otelcol/built"; then
  exit
fi

source tests/deploy/tools.sh
version=$(sed -n 's/^ *version: //p' "$manifest")
install_go_program builder go.opentelemetry.io/collector/cmd/builder "v$version"
echo "building the collector $version"
rm -rf "$tools/otelcol"
mkdir "$tools/otelcol"
cd "$tools/otelcol"
cp "$manifest" builder-config.yaml
timeout 1500 "$tools/bin/builder" --config builder-config.yaml --ldflags '-s -w' >builder.log 2>&1 || {
  cat builder.log
  exit 1
}
cp "$manifest" built
