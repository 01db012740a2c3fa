#!/usr/bin/env bash
# TLS and client certificates: grpcurl, and gRPC's C core (through Python), against a daemon of their own.
set -euo pipefail

# issue_certificate NAME SUBJECT_ALTERNATIVE_NAMES [DAYS [KEY_ALGORITHM...]]: DAYS can be negative.
issue_certificate() {
  local name=$scratch/tls/$1 algorithm=("${@:4}")
  if [[ $# -lt 4 ]]; then
    algorithm=(ec -pkeyopt ec_paramgen_curve:P-256)
  fi
  openssl req -newkey "${algorithm[@]}" -nodes -keyout "$name.key" -subj "/CN=$1" -out "$name.csr" 2>/dev/null
  openssl x509 -req -in "$name.csr" -CA "$scratch/tls/ca.crt" -CAkey "$scratch/tls/ca.key" -days "${3:-2}" -out "$name.crt" \
    -extfile <(printf 'subjectAltName=%s\nbasicConstraints=critical,CA:FALSE\n' "$2") 2>/dev/null
  chmod 600 "$name.key"
}

try_tls() {
  local tls=$scratch/tls address
  mkdir "$tls"
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=jig test CA" \
    -keyout "$tls/ca.key" -out "$tls/ca.crt" 2>/dev/null
  issue_certificate server DNS:localhost,IP:127.0.0.1
  issue_certificate builder URI:spiffe://example.org/builder
  issue_certificate stranger URI:spiffe://example.org/stranger
  "${jigd%/jigd}/jig" key --keys "$tls/keys.toml" new builder --certificate uri:spiffe://example.org/builder 2>/dev/null

  start_part_daemon tls --keys "$tls/keys.toml" --tls-cert "$tls/server.crt" --tls-key "$tls/server.key" --tls-client-ca "$tls/ca.crt"
  address=$part_address
  echo "clients with TLS on $address"

  local call=(grpcurl -max-time 30 -cacert "$tls/ca.crt")
  local builder=(-cert "$tls/builder.crt" -key "$tls/builder.key")
  check "grpcurl runs a command with a client certificate" 0 '"stdout": "hello\\n"' \
    "${call[@]}" "${builder[@]}" -d '{"command": "echo hello"}' "$address" jig.v1.ToolService/Run
  check "grpcurl without a certificate is not authenticated" 1 'Unauthenticated' "${call[@]}" "$address" list
  check "grpcurl with a certificate that no entry names is not authenticated" 1 'Unauthenticated' \
    "${call[@]}" -cert "$tls/stranger.crt" -key "$tls/stranger.key" "$address" list
  check "grpcurl without the CA rejects the daemon" 1 'certificate signed by unknown authority|failed to verify' \
    grpcurl -max-time 30 "$address" list
  check "grpcurl rejects the daemon under a name that its certificate lacks" 1 'certificate is valid for localhost, not other\.example' \
    "${call[@]}" "${builder[@]}" -authority other.example "$address" list
  check "the probe gets SERVING over TLS" 0 'status: SERVING' \
    grpc-health-probe -addr="$address" -tls -tls-ca-cert="$tls/ca.crt" -tls-server-name=localhost
  check "the probe without the CA cannot connect" 2 '' grpc-health-probe -addr="$address" -tls
  check "grpcurl in plaintext is told to use TLS" 1 'HTTP/1.1|TLS|handshake|deadline' grpcurl -plaintext -max-time 5 "$address" list
  check "the Python client calls over TLS with a client certificate" 0 '^SERVING.ADMITTED$' \
    "$tools/unix/python/bin/python" tests/clients/tls/health.py "$address" "$tls/ca.crt" "$tls/builder.crt" "$tls/builder.key"

  local openssl=(openssl s_client -connect "$address" -CAfile "$tls/ca.crt" -verify_return_error) curl=(curl --silent --show-error --max-time 30 --cacert "$tls/ca.crt")
  check "openssl rejects the daemon under a name that its certificate lacks" 1 '[Hh]ostname mismatch' "${openssl[@]}" -verify_hostname other.example
  check "openssl accepts the daemon under its name" 0 'Verify return code: 0' "${openssl[@]}" -verify_hostname localhost
  check "curl rejects the daemon under a name that its certificate lacks" 60 'other\.example' \
    "${curl[@]}" --connect-to "other.example:443:$address" https://other.example/
  check "curl without the CA rejects the daemon" 60 'certificate' curl --silent --show-error --max-time 30 "https://$address/"
  stop_part_daemon

  try_server_certificates
}

# Certificates of the daemon that are no longer valid, or have an RSA key.
try_server_certificates() {
  issue_certificate expired DNS:localhost,IP:127.0.0.1 -1
  mkdir "$scratch/tls-expired"
  start_part_daemon tls-expired --tls-cert "$tls/expired.crt" --tls-key "$tls/expired.key"
  address=$part_address
  check "openssl rejects an expired certificate" 1 'certificate has expired' \
    openssl s_client -connect "$address" -CAfile "$tls/ca.crt" -verify_return_error
  check "curl rejects an expired certificate" 60 'expired' "${curl[@]}" "https://$address/"
  check "grpcurl rejects an expired certificate" 1 'certificate has expired' "${call[@]}" "$address" list
  check "the probe rejects an expired certificate" 2 '' grpc-health-probe -addr="$address" -tls -tls-ca-cert="$tls/ca.crt" -tls-server-name=localhost
  stop_part_daemon

  issue_certificate rsa DNS:localhost,IP:127.0.0.1 2 rsa:2048
  mkdir "$scratch/tls-rsa"
  start_part_daemon tls-rsa --tls-cert "$tls/rsa.crt" --tls-key "$tls/rsa.key"
  address=$part_address
  check "grpcurl runs a command with an RSA certificate" 0 '"stdout": "hello\\n"' \
    "${call[@]}" -d '{"command": "echo hello"}' "$address" jig.v1.ToolService/Run
  check "curl with HTTP/2 accepts an RSA certificate" 0 '^2$' "${curl[@]}" --output /dev/null --write-out '%{http_version}' "https://$address/"
  stop_part_daemon
}
