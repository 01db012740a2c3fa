#!/usr/bin/env bash
# The tools in the formats of model vendors, checked with the vendors' own packages and with a JSON Schema validator.
set -euo pipefail

jig=${CARGO_TARGET_DIR:-target}/debug/jig

try_schemas() {
  echo "rendered tools on $address"
  local sdks=$tools/sdks rendered=$scratch/rendered dialects dialect format here=tests/clients/schemas
  mkdir -p "$rendered/results"
  # The error about an unknown dialect lists the dialects.
  dialects=$("$jig" --address "$address" tools --dialect none 2>&1 | sed -n '1s/.*, or one of //p' | tr -d ,) || true
  check "the daemon names its dialects" 0 'agentbench.*rauskuclaw' echo "$dialects"
  for dialect in contract $dialects; do
    for format in json-schema openai-chat openai-responses anthropic gemini mcp; do
      "$jig" --address "$address" tools --dialect "${dialect/#contract/}" --format "$format" >"$rendered/$dialect.$format.json"
    done
  done

  # Results of three calls: one succeeds, one fails, and one names an unknown tool.
  local calls='[{"call_id":"a","name":"run","arguments":{"command":"echo a"}},{"call_id":"b","name":"read_file","arguments":{"path":"none"}},{"call_id":"c","name":"nothing"}]'
  for format in openai-chat openai-responses anthropic gemini mcp; do
    printf '{"result_format":"%s","calls":%s}' "$format" "$calls" >"$scratch/batch.json"
    { "$jig" --address "$address" --json batch "$scratch/batch.json" || true; } \
      | "$sdks/python/bin/python" -c 'import json, sys; print(json.load(sys.stdin)["messages_json"])' >"$rendered/results/$format.json"
  done

  # The compiler looks for packages in the directories above the program.
  ln -s "$sdks/node_modules" "$scratch/node_modules"
  node "$here/typescript.mjs" "$rendered" "$sdks" >"$rendered/types.ts"
  check "the npm packages' types accept all rendered tools" 0 '^$' "$sdks/node_modules/.bin/tsc" --noEmit --strict --exactOptionalPropertyTypes \
    --skipLibCheck --module nodenext --target esnext --types '' "$rendered/types.ts"
  check "names and strict schemas follow the vendors' rules" 0 ' 0 wrong$' node "$here/rules.mjs" "$rendered" "$sdks"
  check "schemas are valid JSON Schema, and calls match them" 0 ' 0 wrong$' node "$here/validate.mjs" "$rendered" "$sdks" "$jig" "$address"
  check "the Python packages accept all rendered tools" 0 ' 0 wrong$' "$sdks/python/bin/python" "$here/pypi.py" "$rendered"
  # The scenarios of the dialect tests, one file per dialect.
  local examples=(tests/seeds/*.toml)
  if [[ -e ${examples[0]} ]]; then
    check "the documents' examples match the schemas of the tools" 0 ' 0 wrong$' "$sdks/python/bin/python" "$here/examples.py" "$rendered" "${examples[@]}"
  fi
}
