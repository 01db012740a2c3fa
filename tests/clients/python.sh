#!/usr/bin/env bash
# The Python package: its wheel in an environment of its own, its tests against the daemon, its types and its style.
set -euo pipefail

# Copies what the package is built from, so that the build writes nothing into this repository.
copy_python_client() {
  local copy=$scratch/python
  mkdir -p "$copy/client" "$copy/docs/operate"
  cp -r client/python "$copy/client"
  rm -rf "$copy/client/python/jig/v1"
  cp -r proto "$copy"
  cp docs/operate/errors.md "$copy/docs/operate"
}

try_python() {
  echo "the Python package"
  local bin=$tools/python/python/bin client=$scratch/python/client/python installed=$scratch/python/installed oldest=$scratch/python/oldest program part
  program=$(realpath "$jigd")
  copy_python_client
  check "the wheel is built" 0 'Successfully built jig_client-[0-9.]+-py3-none-any.whl' \
    "$bin/python" -m build --wheel --no-isolation --outdir "$scratch/python/dist" "$client"
  python3 -m venv "$installed"
  # As the page of the package says. This build is isolated.
  check "the package is installed from its directory" 0 '' "$installed/bin/pip" install --quiet --disable-pip-version-check "$client" pytest==9.2.0
  # The oldest versions that pyproject.toml allows.
  python3 -m venv "$oldest"
  check "the wheel is installed with the oldest libraries" 0 '' "$oldest/bin/pip" install --quiet --disable-pip-version-check "$scratch"/python/dist/*.whl \
    grpcio==1.76.0 protobuf==6.31.1 googleapis-common-protos==1.70.0 pytest==9.2.0
  # In parts, because of the time limit of a check. They run elsewhere, so that they import the installed package.
  for part in "$installed test_[a-e]*.py" "$installed test_[f-q]*.py" "$oldest test_[r-z]*.py"; do
    # shellcheck disable=SC2086 # a pattern of files
    check "the tests of the wheel pass (${part##*/})" 0 '(^|[^0-9])[1-9][0-9]* passed in ' \
      env -C "$scratch/python" JIG_TEST_JIGD="$program" "${part% *}/bin/pytest" -q -p no:cacheprovider $client/tests/${part#* }
  done
  check "replies in the types of the vendors' packages are parsed" 0 '^10 replies of 4 vendors$' \
    env PYTHONPATH="$client" "$tools/sdks/python/bin/python" tests/clients/python/replies.py
  check "mypy accepts the package in strict mode" 0 '^Success' env -C "$client" "$bin/mypy" --exclude /adapters/
  check "mypy accepts the tests and examples in strict mode" 0 '^Success' env -C "$client" "$bin/mypy" --exclude /adapters/ tests generate.py examples/agent.py
  check "pyright accepts all in strict mode" 0 '^0 errors, 0 warnings' env -C "$client" "$bin/pyright" --pythonpath "$bin/python"
  check "ruff finds no problem" 0 '^All checks passed!$' env -C "$client" "$bin/ruff" check --no-cache
  check "the code has the format of ruff" 0 'already formatted$' env -C "$client" "$bin/ruff" format --no-cache --check
}
