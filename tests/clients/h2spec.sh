#!/usr/bin/env bash
# h2spec: sends frames that break the rules of HTTP/2, to jigd and to a plain tonic server. Both speak HTTP/1.1 on the same port.
set -euo pipefail

try_h2spec() {
  echo "h2spec on $address"
  local tonic_address tonic
  coproc TONIC { exec "${jigd%/jigd}/examples/tonic-server"; }
  tonic=$TONIC_PID
  read -r -t 30 tonic_address <&"${TONIC[0]}"
  # Both fail 3.5/2, an invalid preface: they respond to it in HTTP/1.1 and close the connection.
  check "jigd fails no case of h2spec that plain tonic passes" 0 'failure of both: http2/3\.5: Sends invalid connection preface.*(^|[^0-9])0 failures of jigd only$' \
    python3 tests/clients/h2spec/compare.py "$tools/bin/h2spec" "$address" "$tonic_address"
  kill "$tonic"
  wait "$tonic" || true
}
