//! What a run leaves in its sandbox. A sandbox has another run only if nothing is left, and only of
//! the same caller.
//!
//! The daemons here have one place for runs, so each run follows the one before in its sandbox or in
//! a new one. The command is process 2 of a new sandbox.

use std::sync::Arc;

use jig::api::v1::{LowerLimits, RunRequest};

use crate::{
    callers::start_daemon_with_keys,
    support::{
        Daemon, KeyFile, Mark, Setup, argv, compile_in_workspace, eventually, shell, with_key,
    },
};

pub(super) fn one_place() -> Setup {
    Setup::new().workspace_table("[limits]\nconcurrent_runs = 1")
}

/// Number of the next run's command in its process namespace.
async fn next_process(daemon: &Daemon) -> u32 {
    daemon.output(shell("echo $$")).await.trim().parse().unwrap()
}

/// Makes the present sandbox one that has had a run.
async fn recycle_once(daemon: &Daemon) {
    next_process(daemon).await;
    assert!(next_process(daemon).await > 2, "the sandbox is recycled");
}

/// Scripts of Python that leave one thing each.
const TRACES: &[(&str, &str)] = &[
    ("a file in /tmp", "open('/tmp/left', 'w').close()"),
    ("a file in /dev/shm", "open('/dev/shm/left', 'w').close()"),
    ("a file in the home directory", "open('/home/agent/left', 'w').close()"),
    ("a link that hides nothing", "os.symlink('/nowhere', '/tmp/left')"),
    ("a FIFO", "os.mkfifo('/tmp/left')"),
    ("a socket", "socket.socket(socket.AF_UNIX).bind('/tmp/left')"),
    (
        "a file that was there for a moment",
        "open('/tmp/left', 'w').close(); os.remove('/tmp/left')",
    ),
    ("a mode of /tmp", "os.chmod('/tmp', 0o777)"),
    ("a mode of the home directory", "os.chmod('/home/agent', 0o700)"),
    ("times of /tmp", "os.utime('/tmp', (1, 1))"),
    ("times of /dev/shm", "os.utime('/dev/shm', (1, 1))"),
    ("an attribute of /tmp", "os.setxattr('/tmp', 'user.left', b'left')"),
    (
        "an access list of the home directory",
        "os.setxattr('/home/agent', 'system.posix_acl_default', struct.pack('<IHHIHHIHHI', 2, 1, 7, 2**32 - 1, 4, 7, 2**32 - 1, 32, 7, 2**32 - 1))",
    ),
    ("a segment of System V", "assert libc.shmget(7, 4096, 0o1600) >= 0"),
    ("a semaphore of System V", "assert libc.semget(7, 1, 0o1600) >= 0"),
    ("a message queue of System V", "assert libc.msgget(7, 0o1600) >= 0"),
    ("a message on a socket", "a, b = socket.socketpair(); a.sendmsg([b'left'])"),
    (
        "many messages in one call",
        "a, b = socket.socketpair(); assert libc.sendmmsg(a.fileno(), bytes(64), 0, 0) >= 0",
    ),
    ("a received message", "a, b = socket.socketpair(); a.send(b'left'); b.recvmsg(9)"),
    ("an owner of its output", "fcntl.fcntl(1, fcntl.F_SETOWN, -1)"),
    (
        "an owner of its output by ioctl",
        "fcntl.ioctl(socket.socket(socket.AF_UNIX), 0x8901, struct.pack('i', -1))",
    ),
    (
        "a message of a process that is gone",
        "a, b = socket.socketpair()\nif os.fork() == 0:\n  os.setsid()\n  a.sendmsg([b'left'])\n  os._exit(0)\nb.recv(10)",
    ),
];

#[tokio::test]
async fn sandbox_is_discarded_for_whatever_a_run_leaves() {
    let daemon = one_place().start().await;
    for (what, script) in TRACES {
        recycle_once(&daemon).await;
        let imports = "import ctypes, fcntl, os, socket, struct\nlibc = ctypes.CDLL(None)\n";
        daemon.output(argv(&["python3", "-B", "-c", &format!("{imports}{script}")])).await;
        assert_eq!(next_process(&daemon).await, 2, "{what}: the next run has a new sandbox");
    }
}

/// Commands that leave nothing outside the workspace.
const CLEAN_COMMANDS: &[(&str, &str)] = &[
    ("an exit code", "exit 3"),
    ("a signal", "kill -SEGV $$"),
    ("much output", "yes | head -c 5000000"),
    ("a file in the workspace", "echo one >file; rm file; echo two >other"),
    ("background processes", "sleep 1000 & (setsid sleep 1000 &) ; trap '' TERM; exit 0"),
    ("attempts without effect", "touch /usr/left /proc/left; kill -9 1; renice -5 1; true"),
    ("a lowered share of a long run", "sleep 0.5"),
];

#[tokio::test]
async fn sandbox_is_recycled_after_runs_that_leave_nothing() {
    let daemon = one_place().start().await;
    for (what, script) in CLEAN_COMMANDS {
        daemon.run(shell(script)).await;
        assert!(next_process(&daemon).await > 2, "{what}: the sandbox is recycled");
    }
    assert_eq!(
        daemon.output(shell("ls -A /tmp /dev/shm ~")).await,
        "/dev/shm:\n\n/home/agent:\n\n/tmp:\n"
    );
    // `ps` has a header and shows the init, the template of the shell, the shell and itself.
    assert_eq!(
        daemon.output(shell("ps -A >list; wc -l <list; exec 9>&1; ls /proc/self/fd")).await,
        "5\n0\n1\n2\n3\n9\n"
    );
    let masks = daemon.output(shell("cat /proc/self/status")).await;
    for name in ["SigBlk", "SigIgn", "SigCgt"] {
        assert!(masks.contains(&format!("{name}:\t0000000000000000")), "{masks}");
    }
}

/// Lowers the share of its session. The kernel permits ten such changes a second on one machine.
const LOWER_SHARE_SCRIPT: &str = "
import os, time
share = os.open('/proc/self/autogroup', os.O_WRONLY)
while True:
    try:
        os.write(share, b'7')
        break
    except BlockingIOError:
        time.sleep(0.01)
";

#[tokio::test]
async fn a_changed_share_of_the_session_is_restored() {
    let daemon = one_place().start().await;
    let share = async || daemon.output(shell("sleep 0.1; cat /proc/self/autogroup")).await;
    let before = share().await;
    assert!(before.ends_with(" nice 0\n"), "{before}");
    daemon.output(argv(&["python3", "-c", LOWER_SHARE_SCRIPT])).await;
    // The kernel may refuse it once: see above.
    eventually("the session has its share", async || share().await == before).await;
}

#[tokio::test]
async fn recycling_can_be_switched_off() {
    let daemon = Setup::new()
        .workspace_table("[limits]\nconcurrent_runs = 1\n[sandbox]\nrecycle = false")
        .start()
        .await;
    for _ in 0..6 {
        assert_eq!(next_process(&daemon).await, 2);
    }
}

#[tokio::test]
async fn no_two_callers_share_a_sandbox() {
    let keys = Arc::new(KeyFile::new());
    let callers = ["one", "two"].map(|name| keys.add_key(name, "invoke", &[]));
    let daemon = start_daemon_with_keys(one_place(), &keys).await;
    let process = async |key: &str| -> u32 {
        daemon.output(with_key(key, shell("echo $$"))).await.trim().parse().unwrap()
    };

    let mut recycled = 0;
    for round in 0..20 {
        for key in &callers {
            assert_eq!(process(key).await, 2, "round {round}: another caller");
            recycled += u32::from(process(key).await > 2);
        }
    }
    assert!(recycled > 0, "a caller gets its own sandbox again");
}

#[tokio::test]
async fn sandbox_with_other_limits_serves_one_run() {
    let daemon = one_place().start().await;
    for _ in 0..3 {
        recycle_once(&daemon).await;
        let limits = Some(LowerLimits { tmp_bytes: Some(1 << 20), ..LowerLimits::default() });
        let request = RunRequest { limits, ..shell("echo $$; df -k --output=size /tmp | tail -1") };
        assert_eq!(
            daemon.output(request).await.split_whitespace().collect::<Vec<_>>(),
            ["2", "1024"]
        );
        assert_eq!(next_process(&daemon).await, 2);
    }
}

#[tokio::test]
async fn killed_run_ends_its_sandbox() {
    let daemon = one_place().start().await;
    recycle_once(&daemon).await;
    let request = RunRequest { timeout_sec: Some(1), ..shell("trap '' TERM; sleep 1000") };
    let response = daemon.run(request).await;
    assert!(response.exit_code.is_none(), "{response:?}");
    assert_eq!(next_process(&daemon).await, 2);
}

/// Sends descriptors of its directories, and watches of them, to the process that listens in the
/// workspace.
const PASS_SCRIPT: &str = "
import array, ctypes, os, socket, time
watch = ctypes.CDLL(None).inotify_init1(0)
ctypes.CDLL(None).inotify_add_watch(watch, b'/tmp', 0x3c2)
passed = [os.open(path, os.O_RDONLY) for path in ('/tmp', '/dev/shm', '/home/agent', '/proc', '/dev/pts')] + [watch]
end = socket.socket(socket.AF_UNIX)
while end.connect_ex('meet'):
    time.sleep(0.001)
end.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', passed))])
end.recv(1)
";

/// Receives them, and writes what it sees of later runs to a file.
const SPY_SCRIPT: &str = "
import os, socket, time
end = socket.socket(socket.AF_UNIX)
end.bind('meet')
end.listen()
giver = end.accept()[0]
_, directories, _, _ = socket.recv_fds(giver, 1, 6)
watch = directories.pop()
os.set_blocking(watch, False)
giver.send(b'x')
giver.close()
end.close()
open('ready', 'w').close()
while True:
    seen = []
    for directory in directories:
        try:
            seen += [name for name in os.listdir(directory) if name == 'secret' or name.isdigit() and int(name) > 2]
        except OSError:
            pass
    try:
        seen.append(os.read(watch, 4096))
    except OSError:
        pass
    if seen:
        open('seen', 'a').write(repr(seen))
    time.sleep(0.001)
";

/// Receives an inotify instance, and adds watches of its directories to it.
const WATCH_SCRIPT: &str = "
import ctypes, socket, time
end = socket.socket(socket.AF_UNIX)
while end.connect_ex('meet'):
    time.sleep(0.001)
_, (watch,), _, _ = socket.recv_fds(end, 1, 1)
for path in (b'/tmp', b'/dev/shm', b'/home/agent'):
    assert ctypes.CDLL(None).inotify_add_watch(watch, path, 0x3c2) >= 0
";

/// Gives an inotify instance away, and writes what it reports of later runs to a file.
const LENDING_SPY_SCRIPT: &str = "
import array, ctypes, os, socket
watch = ctypes.CDLL(None).inotify_init1(0)
end = socket.socket(socket.AF_UNIX)
end.bind('meet')
end.listen()
taker = end.accept()[0]
taker.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [watch]))])
taker.recv(1)
taker.close()
end.close()
open('ready', 'w').close()
while True:
    event = os.read(watch, 4096)
    open('seen', 'a').write(repr(event))
";

/// Runs `spy`, which lives on, and once `partner`, which exchanges descriptors with it. Returns what the
/// spy has seen of later runs.
async fn seen_of_later_runs(spy: &str, partner: &str) -> String {
    let daemon = Setup::new().workspace_table("[limits]\nconcurrent_runs = 2").start().await;
    let mark = Mark::new();
    let spy = daemon.spawn_run(mark.on(argv(&["python3", "-c", spy])));
    daemon.output(argv(&["python3", "-c", partner])).await;
    eventually("the spy has the descriptors", async || daemon.file("ready").exists()).await;

    for _ in 0..30 {
        daemon.output(shell("touch /tmp/secret /dev/shm/secret ~/secret; sleep 0.01")).await;
    }
    spy.abort();
    mark.wait_until_gone().await;
    std::fs::read_to_string(daemon.file("seen")).unwrap_or_default()
}

#[tokio::test]
async fn lent_watches_show_nothing_of_later_runs() {
    let seen = seen_of_later_runs(LENDING_SPY_SCRIPT, WATCH_SCRIPT).await;
    assert!(!seen.contains("secret"), "what the spy has seen of later runs: {seen}");
}

#[tokio::test]
async fn passed_directories_show_nothing_of_later_runs() {
    let seen = seen_of_later_runs(SPY_SCRIPT, PASS_SCRIPT).await;
    assert_eq!(seen, "", "what the spy has seen of later runs");
}

#[tokio::test]
async fn queued_signals_reach_no_later_run() {
    let daemon = one_place().start().await;
    let program = compile_in_workspace(&daemon, "relay_flood");
    for round in 0..10 {
        // It may kill itself.
        daemon.run(argv(&[&program])).await;
        for _ in 0..3 {
            assert_eq!(daemon.output(shell("sleep 0.02; echo alive")).await, "alive\n", "{round}");
        }
    }
}

#[tokio::test]
async fn programs_that_send_many_messages_work() {
    let daemon = one_place().start().await;
    let script = "
import socket, threading
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
def send():
    for _ in range(2000):
        a.sendmsg([b'x'])
threads = [threading.Thread(target=send) for _ in range(4)]
for thread in threads: thread.start()
for _ in range(8000): assert b.recv(10) == b'x'
print('done')
";
    assert_eq!(daemon.output(argv(&["python3", "-c", script])).await, "done\n");
    assert_eq!(next_process(&daemon).await, 2);
}
