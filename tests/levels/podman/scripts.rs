//! Scripts that run in a container's `sh`.

/// Starts a daemon on the workspace `$W` for each set of flags and lets it run a command. Prints
/// two lines each: the result and the log's finding.
pub(super) const DAEMON_SCRIPT: &str = r#"
for flags; do
  directory=$(mktemp -d)
  address=unix:$directory/sock
  # Files that a command must not find.
  mkdir -m 700 "$directory/state"
  echo "hidden-in-the-state" > "$directory/state/secret"
  # shellcheck disable=SC2086
  JIG_TEST_SECRET=hidden-in-the-environment /jig/jig serve --listen "$address" --state-dir "$directory/state" \
    --workspace "$W" $flags > "$directory/out" 2> "$directory/log" &
  daemon=$!
  until grep -q '^listening' "$directory/out" || ! kill -0 $daemon 2> /dev/null; do sleep 0.05; done
  if ran=$(/jig/jig --address "$address" --json run -- sh -c "$ATTEMPTS" sh $daemon "$directory" 2> "$directory/reason"); then
    # A command changes a file that a tool wrote; a tool reads a file that a command wrote.
    echo tool > "$directory/text"
    /jig/jig --address "$address" write by-tool < "$directory/text" > /dev/null 2>&1
    changed=$(/jig/jig --address "$address" run -- sh -c 'echo command >> by-tool && cat by-tool' 2>&1)
    read=$(/jig/jig --address "$address" read by-command 2>&1)
    kill -0 $daemon 2> /dev/null && alive=yes || alive=no
    printf 'ran\t%s\t%s\t%s\t%s\n' "$ran" "$(echo "$changed" | tr '\n' ' ')" "$(echo "$read" | tr '\n' ' ')" "$alive"
  else
    printf 'refused\t%s\n' "$(echo "$ran" "$(cat "$directory/reason" "$directory/log")" | tr '\n' ' ')"
  fi
  printf 'log\t%s\n' "$(grep -F 'found:' "$directory/log" | head -1)"
  kill $daemon 2> /dev/null
  wait $daemon
done
"#;
/// Attempts of a command. Arguments: the daemon's process id and its directory.
pub(super) const ATTEMPTS: &str = r#"
id -u
echo written > by-command && cat by-command
cat /proc/[0-9]*/environ 2> /dev/null | grep -ac hidden-in-the-environment
readlink /proc/[0-9]*/exe | grep -c /jig/jig
cat "$2/state/secret" 2> /dev/null
echo changed 2> /dev/null > "$2/state/secret"
ls "$2/state" 2> /dev/null
kill -9 "$1" 2> /dev/null
echo root 2> /dev/null > /etc/by-command || echo end
"#;
