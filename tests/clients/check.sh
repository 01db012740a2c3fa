#!/usr/bin/env bash
# The assertion of all client checks, and the counts of its results.
set -euo pipefail

passed=0
failed=0

# check NAME STATUS PATTERN COMMAND...: runs a command for at most 60 s. Its exit status must be STATUS, and its output must match the extended
# regular expression PATTERN.
check() {
  local name=$1 expected=$2 pattern=$3 status=0 output
  shift 3
  output=$(timeout 60 "$@" 2>&1) || status=$?
  if [[ $status == "$expected" && $output =~ $pattern ]]; then
    passed=$((passed + 1))
    printf 'ok    %s\n' "$name"
    return
  fi
  failed=$((failed + 1))
  printf 'FAIL  %s\n' "$name"
  printf '      command:  %s\n' "$(printf '%q ' "$@")"
  printf '      expected: exit status %s, output that matches %s\n' "$expected" "$pattern"
  printf '      was:      exit status %s, and this output:\n' "$status"
  sed 's/^/        /' <<<"$output"
}

report() {
  printf '%s passed, %s failed\n' "$passed" "$failed"
  [[ $failed == 0 ]]
}
