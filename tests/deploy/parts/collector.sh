#!/usr/bin/env bash
# A real OpenTelemetry Collector, built with its builder: it receives the telemetry of a session, and is lost.
set -euo pipefail

source tests/deploy/telemetry/session.sh

install_collector() {
  install_session
  tests/deploy/telemetry/install.sh
}

try_collector() {
  local collector=$tools/otelcol/otelcol-jig/otelcol-jig
  check "the operator's configuration of the collector is valid" 0 '' \
    env BACKEND=backend.example:4317 "$collector" validate --config deploy/otel/collector.yaml

  export OUTPUT=$scratch/received TLS=$scratch/configuration PLAIN_PORT TLS_PORT
  mkdir "$OUTPUT"
  issue_certificates "$TLS"
  read -r PLAIN_PORT TLS_PORT < <(free_ports 2)
  start_collector
  try_plain
  try_client_certificate
  end collector
  try_lost_collector
}

start_collector() {
  "$tools/otelcol/otelcol-jig/otelcol-jig" --config tests/deploy/telemetry/collector.yaml >"$scratch/collector.log" 2>&1 &
  running[collector]=$!
  wait_for "$scratch/collector.log" 'Everything is ready' >/dev/null
}

# Environment of a daemon that exports soon.
soon=(OTEL_BSP_SCHEDULE_DELAY=200 OTEL_BLRP_SCHEDULE_DELAY=200 OTEL_METRIC_EXPORT_INTERVAL=500)

try_plain() {
  echo "telemetry without TLS, with cumulative metrics"
  start_telemetry_daemon plain "${soon[@]}" "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:$PLAIN_PORT"
  run_session
  plain_bytes=$(sent_bytes "$PLAIN_PORT")
  calls=$(tool_calls)
  stop_telemetry_daemon
  check_received plain cumulative
}

try_client_certificate() {
  echo "telemetry with TLS, a client certificate, gzip and delta metrics"
  local certificate=()
  certificate=("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE=$TLS/client.crt" "OTEL_EXPORTER_OTLP_CLIENT_KEY=$TLS/client.key")
  local endpoint=("OTEL_EXPORTER_OTLP_ENDPOINT=https://127.0.0.1:$TLS_PORT" "OTEL_EXPORTER_OTLP_CERTIFICATE=$TLS/ca.crt")
  start_telemetry_daemon tls "${soon[@]}" "${endpoint[@]}" "${certificate[@]}" OTEL_EXPORTER_OTLP_COMPRESSION=gzip \
    OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=delta
  run_session
  tls_bytes=$(sent_bytes "$TLS_PORT")
  calls=$(tool_calls)
  stop_telemetry_daemon
  check_received tls delta
  check "gzip halves what is sent ($plain_bytes bytes without, $tls_bytes with)" 0 '' test "$tls_bytes" -lt $((plain_bytes / 2))

  start_telemetry_daemon stranger "${soon[@]}" "${endpoint[@]}"
  call "the collector rejects a daemon without a client certificate" 0 "does not accept" wait_for "$here/log" 'the collector does not accept [a-z]+'
  stop_telemetry_daemon
}

# check_received NAME TEMPORALITY
check_received() {
  local file=$OUTPUT/$1.jsonl received=(python3 tests/deploy/telemetry/received.py)
  check "spans of three levels arrive below their parents" 0 '' "${received[@]}" levels "$file" $run_trace $exit_trace $egress_trace
  check "every documented attribute of a span arrives, and no other" 0 '' "${received[@]}" span_attributes "$file"
  check "every documented metric arrives, and no other" 0 '' "${received[@]}" metrics "$file"
  check "metrics are $2" 0 '' "${received[@]}" temporality "$file" "$2"
  check "the metrics count all $calls tool calls" 0 '' "${received[@]}" calls "$file" "$2" "$calls"
  check "log records name their spans" 0 '' "${received[@]}" logs "$file" $run_trace $exit_trace $egress_trace
  check "all signals have the resource" 0 '' "${received[@]}" resources "$file"
  check "the daemon lost nothing" 1 '^$' grep -E 'not delivered|does not accept' "$scratch/$1/log"
}

# Tool calls that the daemon serves to Prometheus.
tool_calls() {
  curl --silent "http://$metrics_address/metrics" | awk '/^jig_tool_calls_total/ { sum += $NF } END { print sum }'
}

# Bytes that connections to a port have sent.
sent_bytes() {
  ss --no-header --tcp --info --numeric "dport = :$1" | grep -oE 'bytes_sent:[0-9]+' | awk -F: '{ sum += $2 } END { print sum }'
}

# issue_certificates DIRECTORY: creates an authority, and certificates of a server and a client.
issue_certificates() {
  local name new=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
  mkdir -p "$1"
  openssl req -x509 "${new[@]}" -days 2 -subj '/CN=jig test CA' -keyout "$1/ca.key" -out "$1/ca.crt" 2>/dev/null
  for name in server client; do
    openssl req -x509 "${new[@]}" -days 2 -subj "/CN=$name" -CA "$1/ca.crt" -CAkey "$1/ca.key" -addext subjectAltName=IP:127.0.0.1 \
      -addext basicConstraints=critical,CA:FALSE -keyout "$1/$name.key" -out "$1/$name.crt" 2>/dev/null
  done
}

# A collector that is lost during a session: one warning for each signal, counts, one line at recovery, and no latency.
try_lost_collector() {
  echo "a collector that is lost"
  local signal warnings lost status=0
  start_collector
  start_telemetry_daemon lost "${soon[@]}" OTEL_EXPORTER_OTLP_TIMEOUT=1000 "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:$PLAIN_PORT"
  export JIG_ADDRESS=$address JIG_KEY=$key
  check "the daemon works with the collector" 0 '' "$jig" write notes.txt <<<one
  end collector

  for signal in spans 'log records' metrics; do
    "$jig" run true
    call "the daemon logs that the collector does not accept $signal" 0 "$signal" wait_for "$here/log" "does not accept $signal"
  done
  for _ in {1..20}; do
    "$jig" read notes.txt >/dev/null
    sleep 0.1 # Several exports are tried.
  done
  warnings=$(grep -c 'does not accept' "$here/log")
  check "each signal has one warning" 0 '^3$' echo "$warnings"
  lost=$(curl --silent "http://$metrics_address/metrics" | sed -n 's/^jig_telemetry_lost_total{jig_telemetry_signal="traces"} //p')
  check "the metric counts lost spans" 0 '^[1-9]' echo "$lost"

  start_collector
  for signal in spans 'log records' metrics; do
    "$jig" run true
    call "the daemon logs that the collector accepts $signal again" 0 "$signal" wait_for "$here/log" "accepts $signal again"
  done
  check "the line of recovery has the count" 0 '"lost_spans":[1-9]' grep 'accepts spans again' "$here/log"
  end collector

  timeout 900 python3 tests/deploy/telemetry/lost_collector.py "$address" \
    "$tools/otelcol/otelcol-jig/otelcol-jig" --config tests/deploy/telemetry/collector.yaml >"$scratch/latency" 2>&1 || status=$?
  cat "$scratch/latency"
  check "a lost collector does not delay calls" 0 '^0$' echo "$status"
  stop_telemetry_daemon
}
