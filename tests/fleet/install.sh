#!/usr/bin/env bash
# Installs the servers of the fleet tests: NATS into $JIG_TOOLS_DIR/bin (default: target/tools/bin),
# and PostgreSQL as the package of Debian, with a link to its programs in $JIG_TOOLS_DIR/postgresql.
# Installs what examples/fleet.py needs into $JIG_TOOLS_DIR/fleet/python.
set -euo pipefail

nats_server_version=v2.15.3

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tools=${JIG_TOOLS_DIR:-target/tools}
mkdir -p "$tools/bin"
tools=$(cd "$tools" && pwd)

# The next process finds what this one has installed.
exec {lock}>"$tools/nats-server.lock"
flock "$lock"

source tests/deploy/tools.sh
install_go_program nats-server github.com/nats-io/nats-server/v2 "$nats_server_version"
install_python_packages fleet tests/fleet/requirements.txt

# newest_postgresql: prints the directory of the newest installed server, if there is one.
newest_postgresql() {
  local programs
  programs=$(printf '%s\n' /usr/lib/postgresql/*/bin/postgres | sort --version-sort | tail -n 1)
  [[ ! -x $programs ]] || dirname "$programs"
}

postgresql=$(newest_postgresql)
if [[ -z $postgresql ]]; then
  echo "installing PostgreSQL"
  # The package would start a server of its own.
  mkdir -p /etc/postgresql-common
  printf 'create_main_cluster = false\n' >>/etc/postgresql-common/createcluster.conf
  apt-get update --quiet --quiet
  DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install --quiet --quiet --yes --no-install-recommends postgresql
  postgresql=$(newest_postgresql)
fi
ln --symbolic --force --no-dereference "$postgresql" "$tools/postgresql"
