#!/usr/bin/env bash
# The documentation: runs the code blocks of README.md and docs/, and the programs in examples/. CONTRIBUTING.md lists the kinds of blocks.
set -euo pipefail

# Needs the stubs from try_agent, and `jig` from schemas.sh.
try_docs() {
  echo "the documentation on $address"
  local page blocks=0
  mkdir -p "$scratch/docs/"{bin,empty,configuration,tmp,srv/{app,docs,project,toolchain}}
  ln -s "$(realpath "$jig")" "$scratch/docs/bin/jig"
  for page in README.md docs/*.md; do
    try_page "$page"
  done
  check "the documentation has blocks" 0 '^[1-9]' echo "$blocks"

  # Like a block, an example runs in another directory, with the address replaced.
  try_block examples/agent.py python "$(<examples/agent.py)" "$address"
  try_block examples/grpcurl.sh "sh grpcurl" "$(<examples/grpcurl.sh)"
  try_block examples/jigd.toml "toml jigd" "$(<examples/jigd.toml)"
}

# try_page PAGE: runs each code block of a page, and adds their number to `blocks`.
try_page() {
  local page=$1 number=0 line kind='' text='' start=0
  while IFS= read -r line; do
    number=$((number + 1))
    if [[ $line != '```'* ]]; then
      text+=$line$'\n'
    elif [[ $start == 0 ]]; then
      start=$number kind=${line#'```'} text=
    else
      case $kind in
        "sh curl" | "sh grpcurl" | "sh jig" | "toml jigd" | python)
          blocks=$((blocks + 1))
          try_block "$page:$start" "$kind" "$text"
          ;;
      esac
      start=0
    fi
  done <"$page"
}

# try_block NAME KIND TEXT [ARGUMENT]...: runs a block in an empty directory; it must succeed and print something.
try_block() {
  local name=$1 kind=$2 text=${3//127.0.0.1:50051/$address} file=$scratch/docs/configuration/jigd.toml command
  shift 3
  case $kind in
    "toml jigd")
      printf '%s' "${text//\/srv\//$scratch/docs/srv/}" >"$file"
      command=("$(realpath "$jigd")" --check --config "$file" --state-dir "$scratch/docs/state")
      ;;
    python) command=(PYTHONPATH="$scratch/stubs" "$tools/sdks/python/bin/python" -c "$text" "$@") ;;
    *) command=(bash -euo pipefail -c "$text" "$@") ;;
  esac
  check "$name: $kind" 0 . env --chdir="$scratch/docs/empty" PATH="$scratch/docs/bin:$PATH" JIG_ADDRESS="$address" TMPDIR="$scratch/docs/tmp" "${command[@]}"
}
