#!/usr/bin/env bash
# grpc-health-probe, the client of orchestrators, which uses grpc-go. Its exit status is 2 if it cannot connect, 3 if the call fails, and 4 if the service
# is not serving.
set -euo pipefail

try_health() {
  echo "grpc-health-probe on $address"
  check "the probe gets SERVING" 0 'status: SERVING' grpc-health-probe -addr="$address"
  check "the probe gets SERVING on the Unix socket" 0 'status: SERVING' grpc-health-probe -addr="unix:$socket"
  check "the probe gets SERVING for one service" 0 'status: SERVING' grpc-health-probe -addr="$address" -service=jig.v1.ToolService
  check "the probe fails for an unknown service" 3 'NotFound' grpc-health-probe -addr="$address" -service=none

  # Without its state directory, a daemon rejects calls.
  mkdir "$scratch/health"
  start_part_daemon health
  mv "$scratch/health/state" "$scratch/health/aside"
  check "the probe gets NOT_SERVING from a daemon without its state directory" 4 'NOT_SERVING' \
    bash -c 'for _ in {1..100}; do grpc-health-probe -addr="$0" || exit $?; sleep 0.1; done' "$part_address"
  check "the daemon without its state directory is live" 0 'status: SERVING' grpc-health-probe -addr="$part_address" -service=liveness
  mv "$scratch/health/aside" "$scratch/health/state"
  stop_part_daemon
  check "the probe cannot connect when the daemon has ended" 2 '' grpc-health-probe -addr="$part_address"
}
