#!/usr/bin/env bash
# ghz: many calls on few connections, none of which may fail.
set -euo pipefail

# JIG_FULL=1 makes all the calls.
ghz_calls=1000
if [[ -n ${JIG_FULL:-} ]]; then
  ghz_calls=10000
fi

try_ghz() {
  echo "ghz on $address"
  local method request
  while read -r method request; do
    check "no call of $ghz_calls to $method fails" 0 "^$ghz_calls \\{\"OK\":$ghz_calls\\}\$" bash -euo pipefail -c '
      ghz --insecure --connections 4 --concurrency 50 --total "$0" --call "$1" --data "$2" --format json "$3" \
        | jq --raw-output "\"\(.count) \(.statusCodeDistribution)\""' "$ghz_calls" "$method" "$request" "$address"
  done <<'END'
jig.v1.ToolService/ReadFile {"path": "lines.txt"}
jig.v1.DaemonService/GetInfo {}
grpc.health.v1.Health/Check {}
END
}
