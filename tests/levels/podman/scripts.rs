//! What runs in a container: scripts for its `sh`.

/// For each set of flags given, starts the daemon on the workspace `$W`, has it run a command, and
/// prints what came of it and what the log says, a line each.
pub(super) const DAEMON_SCRIPT: &str = r#"
for flags; do
  place=$(mktemp -d)
  address=unix:$place/sock
  # What a command must not find.
  mkdir -m 700 "$place/state"
  echo "hidden-in-the-state" > "$place/state/secret"
  # shellcheck disable=SC2086
  JIG_TEST_SECRET=hidden-in-the-environment /jig/jig serve --listen "$address" --state-dir "$place/state" \
    --workspace "$W" $flags > "$place/out" 2> "$place/log" &
  daemon=$!
  until grep -q '^listening' "$place/out" || ! kill -0 $daemon 2> /dev/null; do sleep 0.05; done
  if ran=$(/jig/jig --address "$address" --json run -- sh -c "$ATTEMPTS" sh $daemon "$place" 2> "$place/why"); then
    # Both ways: a tool writes what a command changes, and reads what a command wrote.
    echo tool > "$place/text"
    /jig/jig --address "$address" write by-tool < "$place/text" > /dev/null 2>&1
    changed=$(/jig/jig --address "$address" run -- sh -c 'echo command >> by-tool && cat by-tool' 2>&1)
    read=$(/jig/jig --address "$address" read by-command 2>&1)
    kill -0 $daemon 2> /dev/null && alive=yes || alive=no
    printf 'ran\t%s\t%s\t%s\t%s\n' "$ran" "$(echo "$changed" | tr '\n' ' ')" "$(echo "$read" | tr '\n' ' ')" "$alive"
  else
    printf 'refused\t%s\n' "$(echo "$ran" "$(cat "$place/why" "$place/log")" | tr '\n' ' ')"
  fi
  printf 'log\t%s\n' "$(grep -F 'found:' "$place/log" | head -1)"
  kill $daemon 2> /dev/null
  wait $daemon
done
"#;
/// What a command tries, with the daemon's process and its directory as arguments.
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
