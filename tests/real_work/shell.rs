//! The basis of every script: the shell, system tools, and what they report about the machine.

use super::{failing_lines, run_script, with_each_daemon};
use crate::support::Setup;

with_each_daemon!(
    everyday_commands_succeed,
    commands_see_agent_user_and_workspace,
    bash_features_work,
    inotify_reports_file_changes
);

/// Each must succeed.
const EVERYDAY_COMMANDS: &str = r#"
    flock lock echo locked
    mkfifo fifo; echo x > fifo & cat fifo; wait
    a=$(mktemp) && b=$(mktemp -d) && test -w $a -a -w $b
    test "$(TZ=Asia/Tokyo date -d @0 +%H)" = 09 && test "$(TZ=America/New_York date -d @0 +%H)" = 19
    getent hosts localhost && getent ahosts localhost && getent passwd agent && getent passwd root && getent group agent
    getent services https && getent protocols tcp
    locale && locale -a | grep -i c.utf
    test $(nproc) -gt 0 && grep -q ^processor /proc/cpuinfo
    free -m && grep -q MemTotal /proc/meminfo && uptime && vmstat && head -1 /proc/stat && cat /proc/loadavg
    df && df /workspace /tmp /dev/shm $HOME && df -i /tmp
    ps aux && ps -ef --forest && pgrep -a sh && pstree || ps
    top -b -n1 | grep -q COMMAND
    echo text | less | grep text && echo text | more
    vi -c ':q' </dev/null >/dev/null 2>&1
    echo a > f && vim -es -c '%s/a/b/' -c wq f && grep b f
    printf 'a\nline\n.\nw made\nq\n' | ed -s && grep line made
    bash -c 'diff <(seq 3) <(seq 3) && cat <<< here && read -r x < <(echo y) && test $x = y'
    bash -lc true
    /usr/bin/python3 -m http.server --bind 127.0.0.1 8000 2>/dev/null & until curl -sf http://localhost:8000/ > page; do :; done; kill $!; grep -q Directory page
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout k.pem -out c.pem -days 1 -subj /CN=localhost && openssl verify -CAfile c.pem c.pem && openssl rand -hex 8
    ssh-keygen -q -t ed25519 -N '' -f key && ssh-keygen -lf key.pub && ssh-agent sh -c 'ssh-add -q key && ssh-add -l'
    perl -MPOSIX -MSocket -MFile::Temp -MJSON::PP -e 'fork // die; wait; print strftime("%Y", gmtime), "\n"'
    awk 'BEGIN { "date +%Y" | getline y; exit !(y > 2000) }' && gawk 'BEGIN { print strftime("%Y") }'
    seq 9 | xargs -P4 -n1 echo | sort -n | tail -1 && find . -newer fifo -name 'k*' && seq 9 | parallel 2>/dev/null || true
    split -l1 f && csplit -s f 1 && sort -R f && shuf -n1 f && tac f && comm f f && join f f && paste f f
    dd if=/dev/zero of=z bs=1M count=4 status=none && truncate -s 1G sparse && fallocate -l 1M z && cp --sparse=always --reflink=auto z z2 && cmp z z2
    sqlite3 x.db 'pragma journal_mode=wal; create table t (n); insert into t values (1); select * from t'
    nice -n 5 ionice -c3 taskset -c 0 chrt -b 0 true && nohup true && setsid -w true && timeout 9 stdbuf -oL true
    echo in | cat /dev/stdin && echo out > /dev/stdout && echo err > /dev/stderr && head -c 8 /dev/urandom | wc -c && head -c 8 /dev/zero > /dev/null
    ! echo x > /dev/full
    TERM=xterm tput cols && TERM=xterm clear && TERM=vt100 infocmp > /dev/null && stty --help > /dev/null
    ln -s f sym && ln f hard && chmod 600 f && touch -d yesterday f && stat -c %h f | grep 2 && chown agent:agent f && readlink -f sym
    install -D -m 755 f a/b/c && cp -a a copied && mv copied moved && rm -r moved && umask 077 && mkdir private
    ulimit -a && test $(ulimit -n) -ge 1024 && (ulimit -n 4096; ulimit -c 0; ulimit -s 16384)
    lsof -p $$ > /dev/null || true; ss -ltn 2>/dev/null; ip addr show lo | grep 127.0.0.1; cat /proc/net/tcp
    tmux new -d -s s 'sleep 60' && tmux ls | grep s: && tmux kill-server
    test "$(fakeroot sh -c 'touch owned && chown root:root owned && stat -c %U owned')" = root
    man -w ls 2>/dev/null || true; cat /etc/os-release | grep -q ID && test -r /etc/ssl/certs
    gpg --version >/dev/null 2>&1 || true; echo bye | base64 | base64 -d | md5sum | cut -c1-4 && sha256sum f && cksum f && od -c f && xxd f 2>/dev/null || true
"#;

async fn everyday_commands_succeed(setup: Setup) {
    let daemon = setup.start().await;
    assert_eq!(failing_lines(&daemon, EVERYDAY_COMMANDS).await, [""; 0]);
}

async fn commands_see_agent_user_and_workspace(setup: Setup) {
    let daemon = setup.start().await;
    let script = "id -un; id -gn; whoami; hostname; hostname -f; echo ~; pwd; echo $LANG $SHELL $USER $LOGNAME $TMPDIR; uname -s; \
        stat -c '%U %G' . ~ /tmp";
    let expected = "agent\nagent\nagent\njig\nlocalhost\n/home/agent\n/workspace\nC.UTF-8 /bin/sh agent agent /tmp\nLinux\n\
        agent agent\nagent agent\nagent agent\n";
    assert_eq!(run_script(&daemon, script).await, expected);
}

async fn bash_features_work(setup: Setup) {
    let daemon = setup.start().await;
    let script = r#"
sleep 0.1 & wait; echo waited $?
(exit 3) & wait $! || echo status $?
set -m; sleep 100 & jobs | grep -c Running; kill %1; wait %1 2>/dev/null || echo killed; set +m
trap 'echo trapped' USR1; kill -USR1 $$
coproc cat; echo through >&${COPROC[1]}; read -ru ${COPROC[0]} line; echo $line; kill $COPROC_PID
exec 5<>/tmp/both; echo kept >&5; cat /tmp/both; exec 5>&-
{ echo one; echo two >&2; } 2>&1 | sort | tr '\n' ' '; echo
cat <<END | tee copy
here $((6 * 7))
END
shopt -s globstar; mkdir -p a/b; touch a/b/c; echo **/c
mapfile -t lines < <(printf '%s\n' x y z); echo ${#lines[@]}
time -p true 2>/dev/null; ulimit -u > /dev/null; printf '%(%Y)T\n' 0
(echo > /dev/tcp/127.0.0.1/9) 2>/dev/null || echo refused
"#;
    let expected = "waited 0\nstatus 3\n1\nkilled\ntrapped\nthrough\nkept\none two \nhere 42\na/b/c\n3\n1970\nrefused\n";
    assert_eq!(run_script(&daemon, script).await, expected);
}

async fn inotify_reports_file_changes(setup: Setup) {
    let daemon = setup.start().await;
    let script = r#"
mkdir seen
inotifywait -qm -e create -e moved_to --format %f seen > events 2> said & watcher=$!
until touch seen/first-$RANDOM; test -s events; do :; done
touch seen/x; mv seen/x seen/last
until grep -q last events; do :; done
kill $watcher; tail -1 events
"#;
    assert_eq!(run_script(&daemon, script).await, "last\n");
}
