#!/usr/bin/env bash
# A real Prometheus: it scrapes a daemon, probes its readiness, evaluates the alert rules and answers the queries of the dashboard.
set -euo pipefail

source tests/deploy/telemetry/session.sh

install_prometheus() {
  deploy/release/install-packages prometheus prometheus-blackbox-exporter
  install_session
  # Grafana's schema.
  go build -C tests/deploy/grafana -mod=readonly -o "$tools/bin/check-dashboard" .
}

try_prometheus() {
  local rules=deploy/prometheus/jigd.rules.yaml monitoring=(python3 tests/deploy/prometheus/monitoring.py)
  check "the alert rules are valid" 0 'SUCCESS: [0-9]+ rules found' promtool check rules "$rules"
  check "each alert fires when it should, and not otherwise" 0 'SUCCESS' promtool test rules tests/deploy/prometheus/rules.test.yaml
  check "each alert has a test and a section of the runbook" 0 '' "${monitoring[@]}" alerts
  check "the configuration of Prometheus is valid" 0 'SUCCESS' promtool check config deploy/prometheus/prometheus.yaml
  check "Grafana's schema accepts the dashboard" 0 'panels and [0-9]+ queries are valid' check-dashboard deploy/grafana/jigd.json

  start_telemetry_daemon scraped
  print_series "after its start"
  start_prometheus
  # A burst within the first minute of the daemon.
  call "callers without a key are rejected" 0 '(unauthenticated.*){60}' reject_callers
  check "the alert on failures of authentication fires" 0 'rejects many callers with UNAUTHENTICATED' \
    "${monitoring[@]}" firing "$prometheus" JigAuthFailures UNAUTHENTICATED "$metrics_address"

  run_session
  # Two scrapes, for rates.
  sleep 3
  check "promtool objects only to names that end with _count" 3 '^([a-z_]+_count non-histogram and non-summary metrics should not have "_count" suffix.?)+$' \
    bash -c 'curl --silent "http://$0/metrics" | promtool check metrics' "$metrics_address"
  check "each rule is evaluated, and names metrics and labels that exist" 0 '' "${monitoring[@]}" rules "$prometheus"
  check "each query of the dashboard has a result, and each metric a panel" 0 '' "${monitoring[@]}" dashboard "$prometheus"
  check "each variable of the dashboard has values" 0 '' "${monitoring[@]}" variables "$prometheus"
  check "the probe of readiness succeeds" 0 '"value":\[[0-9.]+,"1"\]' \
    curl --silent --get "$prometheus/api/v1/query" --data-urlencode 'query=probe_success{job="jigd-readiness"}'
  print_series "after the session"
  stop_telemetry_daemon
  end prometheus
  end blackbox
}

# Starts Prometheus with the operator's configuration, on free ports and with short intervals. Sets `prometheus` (URL).
start_prometheus() {
  local directory=$scratch/prometheus port probe_port
  mkdir "$directory"
  read -r port probe_port < <(free_ports 2)
  sed -e "s/127.0.0.1:9464/$metrics_address/" -e "s/127.0.0.1:8081/$health_address/" -e "s/127.0.0.1:9115/127.0.0.1:$probe_port/" \
    -e 's/: 30s/: 1s/' -e "s|\[jigd.rules.yaml\]|[$PWD/deploy/prometheus/jigd.rules.yaml]|" deploy/prometheus/prometheus.yaml >"$directory/prometheus.yaml"

  prometheus-blackbox-exporter --config.file /etc/prometheus/blackbox.yml --web.listen-address "127.0.0.1:$probe_port" >"$directory/blackbox.log" 2>&1 &
  running[blackbox]=$!
  prometheus --config.file "$directory/prometheus.yaml" --storage.tsdb.path "$directory/data" --web.listen-address "127.0.0.1:$port" \
    >"$directory/log" 2>&1 &
  running[prometheus]=$!
  prometheus=http://127.0.0.1:$port
  wait_for "$directory/log" 'Server is ready' >/dev/null
  check "Prometheus scrapes the daemon" 0 '"1"\]' bash -c '
    for _ in {1..100}; do
      curl --silent --get "$0/api/v1/query" --data-urlencode "query=up{job=\"jigd\"} == 1" | grep -F "\"1\"]" && exit
      sleep 0.1
    done' "$prometheus"
}

print_series() {
  curl --silent "http://$metrics_address/metrics" | awk -v when="$1" '!/^#/ { count++ } { bytes += length + 1 }
    END { printf "the daemon has %d series in %d bytes %s\n", count, bytes, when }'
}

# Makes 80 calls without a key.
reject_callers() {
  curl --silent --max-time 30 -H 'content-type: application/json' --data '{}' "http://$address/jig.v1.DaemonService/GetInfo?[1-80]"
}
