#!/usr/bin/env bash
# The adapters of the Python package: the frameworks' own suites, tests and examples against the daemon, and types.
#
# The frameworks take 90 s to install and 600 MB. Their environment is in the tools directory. Suites that wait run beside the others.
set -euo pipefail

# Needs the copy of the package from try_python.
try_adapters() {
  echo "the adapters of the Python package"
  local bin=$tools/adapters/python/bin client=$scratch/python/client/python results=$scratch/adapters program suite
  local waiting=(inspect_suite anthropic) others=(inspect pydantic_ai deepagents deepagents_suite openai_agents google_adk smolagents docs)
  program=$(realpath "$jigd")
  mkdir -p "$results" "$client/docs"
  cp -r docs/adapters "$client/docs"
  "$bin/python" "$client/generate.py"

  # The daemon of the other checks is a job of this shell too.
  local jobs=()
  run_adapter_suites pydantic_ai_suite &
  jobs+=($!)
  run_adapter_suites "${waiting[@]}" &
  jobs+=($!)
  run_adapter_suites "${others[@]}" &
  jobs+=($!)
  wait "${jobs[@]}"
  for suite in pydantic_ai_suite "${waiting[@]}" "${others[@]}"; do
    check "the tests of adapters pass ($suite)" 0 $'\nok$' \
      awk '{ print } END { print $0 ~ /^[0-9]+ passed(, [0-9]+ xfailed)?(, [0-9]+ warnings?)? in / ? "ok" : "not all passed" }' "$results/$suite.log"
  done
  check "mypy accepts the adapters in strict mode" 0 '^Success' \
    env -C "$client" MYPYPATH=. "$bin/mypy" --strict jig/adapters tests/adapters examples/adapters
  check "pyright accepts the adapters in strict mode" 0 '^0 errors, 0 warnings' env -C "$client" "$bin/pyright" -p tests/adapters --pythonpath "$bin/python"
}

# run_adapter_suites SUITE...: runs suites one after the other, elsewhere, because examples write their logs into the current directory.
run_adapter_suites() {
  local suite
  for suite in "$@"; do
    env -C "$results" PYTHONPATH="$client" JIG_TEST_JIGD="$program" timeout 170 "$bin/pytest" -q -p no:cacheprovider -W ignore --tb=short \
      -c "$client/tests/adapters/pytest.ini" "$client/tests/adapters/test_$suite.py" >"$results/$suite.log" 2>&1 || true
  done
}
