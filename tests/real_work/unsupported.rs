//! Commands that do not work in the sandbox, as listed in docs/isolation.md: each fails at once,
//! with the reason as far as the program reports it.

use super::{run_script, try_script, with_each_daemon};
use crate::support::Setup;

with_each_daemon!(unsupported_commands_fail_with_a_reason, leak_sanitizer_fails_without_ptrace);

/// Commands and the errors they report.
const FAILING_COMMANDS: &[(&str, &str)] = &[
    ("strace true", "Operation not permitted"),
    ("gdb -q -batch -ex run /bin/true", "Operation not permitted"),
    ("unshare -r true", "Operation not permitted"),
    ("mount -t tmpfs x /tmp", "must be superuser"),
    ("chroot / true", "Operation not permitted"),
    ("chown root .", "Operation not permitted"),
    ("touch s; chmod u+s s", "Operation not permitted"),
    ("mkdir -m 2775 shared", "Operation not permitted"),
    ("mknod null c 1 3", "Operation not permitted"),
    ("dmesg", "Operation not permitted"),
    ("date -s 2020-01-01", "Operation not permitted"),
    ("echo x > /usr/file", "Read-only file system"),
    ("echo x > /etc/file", "Read-only file system"),
    ("curl -sS http://192.0.2.1/", "ouldn't connect to server"),
    ("curl -sS http://host.example/", "ould not resolve host"),
    ("head -c 600000000 /dev/zero > /tmp/large", "No space left on device"),
];

async fn unsupported_commands_fail_with_a_reason(setup: Setup) {
    let daemon = setup.start().await;
    let mut unexpected = Vec::new();
    for (line, reason) in FAILING_COMMANDS {
        let response = try_script(&daemon, line, &[]).await;
        let output = format!("{}{}", response.stdout, response.stderr);
        if response.exit_code == Some(0) || !output.contains(reason) {
            unexpected.push(format!("{line}: {:?} {output}", response.exit_code));
        }
    }
    assert_eq!(unexpected, [""; 0]);
}

async fn leak_sanitizer_fails_without_ptrace(setup: Setup) {
    let daemon = setup.start().await;
    let source = "echo 'int main(void) { return 0; }' > m.c; gcc -fsanitize=address -o m m.c";
    run_script(&daemon, source).await;
    let response = try_script(&daemon, "./m", &[]).await;
    assert!(response.stderr.contains("LeakSanitizer"), "{response:?}");
    assert_ne!(response.exit_code, Some(0));
    run_script(&daemon, "ASAN_OPTIONS=detect_leaks=0 ./m").await;
}
