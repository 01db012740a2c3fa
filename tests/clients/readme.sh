#!/usr/bin/env bash
# The README's examples: each block that opens with ```sh grpcurl is run as it stands, but for the address.
set -euo pipefail

try_readme() {
  echo "the README's examples on $address"
  local block=0 line text='' inside=
  while IFS= read -r line; do
    case $inside$line in
      '```sh grpcurl')
        inside=yes
        text=
        ;;
      'yes```')
        inside=
        block=$((block + 1))
        check "example $block: $(head -n 1 <<<"$text")" 0 '.' bash -euo pipefail -c "${text//127.0.0.1:50051/$address}"
        ;;
      yes*) text+=$line$'\n' ;;
    esac
  done <README.md
  check "the README has examples" 0 '^[1-9]' echo "$block"
}
