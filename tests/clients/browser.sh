#!/usr/bin/env bash
# Web pages in headless Chromium: one of an origin that the daemon allows, and one of another.
set -euo pipefail

pages=

try_browser() {
  echo "pages in Chromium"
  local here=$scratch/browser allowed foreign key parameters found
  mkdir "$here"
  buf build --as-file-descriptor-set -o "$here/contract.binpb"
  mkfifo "$here/origins"
  node tests/clients/browser/serve.mjs "$tools/http/node_modules" "$here/contract.binpb" >"$here/origins" &
  pages=$!
  read -r -t 30 allowed foreign <"$here/origins"

  printf '[http]\nallowed_origins = ["%s"]\n' "$allowed" >"$here/jigd.toml"
  key=$("${jigd%/jigd}/jig" key --keys "$here/keys.toml" new page 2>/dev/null)
  start_part_daemon browser --config "$here/jigd.toml" --keys "$here/keys.toml"
  parameters="daemon=$part_address&keyless=$address&key=$key"

  local chromium=(env HOME="$here" XDG_CONFIG_HOME="$here/config" XDG_CACHE_HOME="$here/cache" chromium --headless --user-data-dir="$here/profile")
  # The browser itself calls no other host, and prints a page that does not finish.
  chromium+=(--no-first-run --disable-background-networking --disable-component-update --disable-sync --no-proxy-server)
  chromium+=("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1" --disable-gpu --disable-dev-shm-usage --log-level=3 --timeout=30000 --dump-dom)
  if [[ $EUID == 0 ]]; then
    # Chromium's own sandbox refuses root.
    chromium+=(--no-sandbox)
  fi
  check "a page of an allowed origin calls tools and watches them by WebSocket" 0 '>4 passed, 0 failed<' "${chromium[@]}" "$allowed/allowed.html#$parameters"
  check "a page of another origin can neither call nor watch" 0 '>5 passed, 0 failed<' "${chromium[@]}" "$foreign/foreign.html#$parameters"
  found=$(find "$here/workspace" "$scratch/workspace" -name 'by-*' -o -name without-key)
  check "only the allowed page ran commands" 0 "^$here/workspace/by-allowed-page\$" echo "$found"

  stop_part_daemon
  kill_pages
}

# Ends the server of the pages.
kill_pages() {
  if [[ -n $pages ]]; then
    kill "$pages" 2>/dev/null || true
    wait "$pages" 2>/dev/null || true
    pages=
  fi
}
