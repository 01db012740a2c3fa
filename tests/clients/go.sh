#!/usr/bin/env bash
# The Go module: its stubs, its tests against the daemon, and a program that takes it from a release.
set -euo pipefail

# Copies what the module is built from, so that the build writes nothing into this repository.
copy_go_client() {
  local copy=$scratch/go
  mkdir -p "$copy/client" "$copy/docs/operate"
  cp -r client/go "$copy/client"
  cp -r proto "$copy"
  cp docs/operate/errors.md "$copy/docs/operate"
  cp LICENSE "$copy"
  rm -rf "$copy"/client/go/{jigv1,reasons.go}
}

try_go() {
  echo "the Go module"
  local module=$scratch/go/client/go program version part
  program=$(realpath "$jigd")
  copy_go_client
  check "the modules that the Go module needs are downloaded" 0 '' env -C "$module" go mod download
  check "the Go module is generated" 0 '^$' env -C "$module" go generate ./...
  check "gofmt finds no difference" 0 '^$' env -C "$module" gofmt -l .
  check "go vet finds no problem" 0 '^$' env -C "$module" go vet ./...
  check "the tests of the Go module are compiled" 0 '^$' env -C "$module" go test -c -o "$scratch/go/tests" .
  # In parts, because of the time limit of a check.
  for part in A-L M-Z; do
    check "the tests of the Go module pass ($part)" 0 '(^|[[:space:]])PASS$' \
      env -C "$module" JIG_TEST_JIGD="$program" "$scratch/go/tests" -test.run "^Test[$part]"
  done

  # A program elsewhere takes it from the files of a release. The version is new, because the cache of modules keeps each forever.
  version=v0.0.0-test.$EPOCHSECONDS
  check "a release of the Go module is made" 0 '^$' "$module/release" "$version" "$scratch/go/proxy"
  mkdir "$scratch/go/program"
  cp "$module/examples/agent/main.go" "$scratch/go/program"
  local in_program=(env -C "$scratch/go/program" GOFLAGS="-mod=mod -modcacherw" GOPROXY="file://$scratch/go/proxy,$(go env GOPROXY)" GONOSUMDB=jig.example)
  check "a Go program can be made" 0 '' "${in_program[@]}" go mod init program
  check "the program gets the module of the release" 0 "added jig.example/client $version" "${in_program[@]}" go get "jig.example/client@$version"
  check "the program runs tool calls" 0 'run: true.*hello from the sandbox' "${in_program[@]}" JIG_ADDRESS="unix:$socket" go run .
  sed -n '/^```go$/,/^```$/{/^```/d; s|unix:/run/jig.sock|unix:'"$socket"'|; p}' client/go/README.md >"$scratch/go/program/main.go"
  check "the program of the Go README runs a command" 0 'hello.* 3$' "${in_program[@]}" go run .
  rm -rf "$(go env GOMODCACHE)"/{,cache/download/}jig.example
}
