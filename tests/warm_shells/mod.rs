//! Warm shells: commands behave in them as in a shell that is executed.

use jig::api::v1::{RunRequest, RunResponse};

use crate::support::{
    DAEMON_UID, Daemon, Process, Setup, argv, descendants, eventually, shell, status_field,
};

/// One script in each line. In those that begin with `cat <<`, `\\n` and `\\t` stand for a line end and
/// a tab.
const SCRIPTS: &str = include_str!("scripts.txt");

/// The scripts, and some that do not fit in a line.
fn scripts() -> Vec<String> {
    let unescape = |line: &str| match line.strip_prefix("cat <<") {
        Some(_) => line.replace("\\n", "\n").replace("\\t", "\t"),
        None => line.to_owned(),
    };
    let long = [
        String::new(),
        "\n\necho late\n".to_owned(),
        format!("echo {} | wc -c", "x".repeat(30_000)),
        format!("echo {} | wc -c", "x".repeat(100_000)),
        format!("cat <<E\n{}E", "line\n".repeat(5_000)),
        "--version".to_owned(),
        "+e".to_owned(),
    ];
    SCRIPTS.lines().map(unescape).chain(long).collect()
}

fn one_place(warm_shells: bool) -> Setup {
    Setup::new().workspace_table(&format!(
        "[limits]\nconcurrent_runs = 1\n[sandbox]\nwarm_shells = {warm_shells}"
    ))
}

fn request(shell: &str, script: &str) -> RunRequest {
    let env = [("EMPTY", ""), ("WEIRD-x.y", "x"), ("LINES_", "a\nb"), ("TZ", "Europe/Berlin")];
    // A shell that stops itself ends at its time limit.
    let timeout_sec = if script.starts_with("kill -STOP $$") { 2 } else { 20 };
    RunRequest {
        env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        stdin: b"line one\nline two\nthree".as_slice().into(),
        timeout_sec: Some(timeout_sec),
        ..argv(&[shell, "-c", script])
    }
}

/// What a command of a shell shows: output and end. Without the variable that differs in each run. The
/// process limit of a copy is higher by one, because the template counts.
fn behaviour(response: &RunResponse) -> [String; 3] {
    let end = format!("{:?} {:?}", response.exit_code, response.signal);
    let stdout = response.stdout.replace("515", "514");
    let mut parts = stdout.split("TRACEPARENT");
    let mut shown = parts.next().unwrap().to_owned();
    for part in parts {
        // `=`, perhaps a quote, and 55 characters.
        let rest = part.find("00-").map_or(part, |start| part.get(start + 55..).unwrap_or(""));
        shown.push_str(rest);
    }
    [shown, response.stderr.clone(), end]
}

/// Replaces each number.
fn without_numbers(texts: &[String; 3]) -> [String; 3] {
    texts.each_ref().map(|text| {
        let mut masked = String::new();
        for part in text.split_inclusive(|c: char| !c.is_ascii_digit()) {
            let digits = part.chars().take_while(char::is_ascii_digit).count();
            if digits > 0 {
                masked.push('N');
            }
            masked.push_str(&part[digits..]);
        }
        masked
    })
}

/// Whether a shell is a copy: the kernel has noted the beginning of the template's stack, above which
/// the arguments of an execution are.
const IS_COPY: &str = "read -r line </proc/$$/stat; set -- ${line##*)}; \
                       shift 25; start=$1; shift 20; test $1 -lt $start && echo copy || echo executed";

/// Makes the present sandbox one with a warm shell.
async fn warm_up(daemon: &Daemon, shell: &str) {
    eventually("the shell is warm", async || {
        daemon.output(argv(&[shell, "-c", IS_COPY])).await == "copy\n"
    })
    .await;
}

/// Runs all scripts in warm shells and in executed ones. They must behave alike.
///
/// Some scripts race with what they look at: each may have several behaviours, of which the two kinds
/// of shells must share one. Where executed shells differ among themselves, numbers do not count.
async fn compare_scripts(setup: impl Fn(bool) -> Setup, path: &str) {
    let (warm, executed) = (setup(true).start().await, setup(false).start().await);
    let mut differences = Vec::new();
    'scripts: for script in scripts() {
        let (mut seen, mut seen_of_copies) = (Vec::new(), Vec::new());
        for _ in 0..6 {
            warm_up(&warm, path).await;
            seen_of_copies.push(behaviour(&warm.run(request(path, &script)).await));
            seen.push(behaviour(&executed.run(request(path, &script)).await));
            let varies = seen.iter().any(|other| *other != seen[0]);
            let is_shared = |copy: &[String; 3]| {
                let mut others = seen.iter();
                others.any(|other| {
                    other == copy || varies && without_numbers(other) == without_numbers(copy)
                })
            };
            if seen_of_copies.iter().any(is_shared) {
                continue 'scripts;
            }
        }
        differences.push(format!(
            "{script:.200}\n  executed {:?}\n  copy     {:?}",
            seen[0], seen_of_copies[0]
        ));
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[tokio::test]
async fn sh_behaves_as_if_it_were_executed() {
    compare_scripts(one_place, "/bin/sh").await;
}

#[tokio::test]
async fn bash_behaves_as_if_it_were_executed() {
    compare_scripts(one_place, "/bin/bash").await;
}

#[tokio::test]
async fn sh_of_an_unprivileged_daemon_behaves_as_if_it_were_executed() {
    compare_scripts(|warm| one_place(warm).user(DAEMON_UID), "/bin/sh").await;
}

#[tokio::test]
async fn bash_of_an_unprivileged_daemon_behaves_as_if_it_were_executed() {
    compare_scripts(|warm| one_place(warm).user(DAEMON_UID), "/bin/bash").await;
}

async fn is_copy(daemon: &Daemon, request: RunRequest) -> bool {
    let answer = daemon.output(request).await;
    assert!(["copy\n", "executed\n"].contains(&answer.as_str()), "{answer}");
    answer == "copy\n"
}

/// Commands that a copy could not become.
#[tokio::test]
async fn other_commands_are_executed() {
    let daemon = one_place(true).start().await;
    let with_variable = |name: &str| RunRequest {
        env: [(name.to_owned(), "1".to_owned())].into(),
        ..shell(IS_COPY)
    };
    let many = (0..300).map(|number| (format!("V{number}"), String::new())).collect();
    let long = ("LONG".to_owned(), "x".repeat(60_000));
    let others = [
        ("another name", argv(&["sh", "-c", IS_COPY])),
        ("another shell", argv(&["/bin/bash", "-c", IS_COPY])),
        ("another path", argv(&["/bin/dash", "-c", IS_COPY])),
        ("a variable of the loader", with_variable("LD_BIND_NOW")),
        ("a variable of the allocator", with_variable("MALLOC_ARENA_MAX")),
        ("tunables", with_variable("GLIBC_TUNABLES")),
        ("many variables", RunRequest { env: many, ..shell(IS_COPY) }),
        ("many arguments", argv(&[&["/bin/sh", "-c", IS_COPY], &["1"; 8000][..]].concat())),
        ("a long variable", RunRequest { env: [long].into(), ..shell(IS_COPY) }),
    ];
    for (what, request) in others {
        warm_up(&daemon, "/bin/sh").await;
        assert!(!is_copy(&daemon, request).await, "{what}");
    }

    warm_up(&daemon, "/bin/sh").await;
    assert_eq!(daemon.output(argv(&["/bin/echo", "no shell"])).await, "no shell\n");
    let script = format!("sleep 0.01; {IS_COPY}");
    for _ in 0..3 {
        warm_up(&daemon, "/bin/sh").await;
        assert!(is_copy(&daemon, shell(&script)).await, "the same shell again");
    }
}

/// Prints what a run can change of the template: limits, CPUs and signals. The process limit is higher
/// by one where there is a template.
const STATE: &str = "sed s/515/514/g /proc/$$/limits; cat /proc/$$/oom_score_adj; \
    grep -E '^(Sig|Shd|Cpus_allowed:|Umask|Seccomp)' /proc/$$/status | grep -v SigQ; \
    ionice -p $$; pwd; umask; env | grep -v TRACEPARENT";

/// Prints priority, nice value and policy of the template. The daemon changes those of commands that
/// take long.
const PRIORITY: &str = "for p in /proc/[0-9]*; do read -r n <$p/comm; \
    [ $n = jig-shell ] && read -r stat <$p/stat; done; set -- ${stat##*)}; echo ${16} ${17} ${39}";

/// What hostile commands do to the template, whose process number they get.
const TAMPERING: &[(&str, &str)] = &[
    ("kill", "kill -9 $T"),
    ("stop", "kill -STOP $T"),
    ("stop and continue", "kill -STOP $T; kill -CONT $T"),
    ("all signals", "for s in $(seq 64); do kill -$s $T 2>/dev/null; done"),
    ("kill everything", "kill -9 -1"),
    ("its group", "kill -9 -$T"),
    ("priority", "renice -n 19 -p $T"),
    ("priority of the group", "renice -n 19 -g $T"),
    (
        "priority of a joined group",
        "python3 -c 'import os; os.setpgid(0, int(os.environ[\"T\"])); os.setpriority(1, 0, 19)'",
    ),
    ("limits", "prlimit --pid $T --nofile=10:10 --nproc=1:1 --core=0"),
    ("CPUs", "taskset -p 1 $T"),
    ("policy", "chrt --idle -p 0 $T; chrt --batch -p 0 $T"),
    ("I/O priority", "ionice -c 3 -p $T"),
    ("memory", "head -c 1 /proc/$T/mem; echo x >/proc/$T/mem; cat /proc/$T/maps /proc/$T/environ"),
    ("descriptors", "ls /proc/$T/fd; echo x >/proc/$T/fd/5; cat /proc/$T/fd/3"),
    ("score", "echo 1000 >/proc/$T/oom_score_adj; echo 1 >/proc/$T/timerslack_ns"),
    ("name", "echo hostile >/proc/$T/comm"),
    ("filter", "echo 0 >/proc/$T/coredump_filter; echo 5 >/proc/$T/clear_refs"),
    (
        "trace",
        "python3 -c 'import ctypes, os; print(ctypes.CDLL(None).ptrace(16, int(os.environ[\"T\"]), 0, 0))'",
    ),
    ("background", "(setsid sleep 1000 &); sleep 1000 & exit 0"),
];

#[tokio::test]
async fn no_run_changes_the_template_for_later_runs() {
    for setup in [one_place(true), one_place(true).user(DAEMON_UID)] {
        let daemon = setup.start().await;
        warm_up(&daemon, "/bin/sh").await;
        let expected = daemon.output(shell(STATE)).await;
        warm_up(&daemon, "/bin/sh").await;
        let expected_priority = daemon.output(shell(PRIORITY)).await;

        for (what, script) in TAMPERING {
            warm_up(&daemon, "/bin/sh").await;
            let find = "for p in /proc/[0-9]*; do read -r n <$p/comm; [ $n = jig-shell ] && T=${p#/proc/}; done; export T; [ $T ] || exit 99";
            let response = daemon.run(shell(&format!("{find}; {script}"))).await;
            assert_ne!(response.exit_code, Some(99), "{what}: there is a template");
            for _ in 0..3 {
                assert_eq!(daemon.output(shell(STATE)).await, expected, "{what}");
            }
            warm_up(&daemon, "/bin/sh").await;
            let priority = daemon.output(shell(PRIORITY)).await;
            assert_eq!(priority, expected_priority, "{what}");
        }
    }
}

/// Secrets of one command, and where the next could find them.
#[tokio::test]
async fn a_copy_knows_nothing_of_other_commands() {
    let daemon = one_place(true).start().await;
    let secret = "one-of-a-kind";
    let search = "import os
found = []
for line in open(f'/proc/{os.getppid()}/maps'):
    start, end = (int(part, 16) for part in line.split()[0].split('-'))
    if 'r' in line.split()[1] and 'vsyscall' not in line and 'vvar' not in line:
        with open(f'/proc/{os.getppid()}/mem', 'rb') as memory:
            memory.seek(start)
            try:
                content = memory.read(end - start)
            except OSError:
                continue  # beyond the end of a file
        words = (b'one-of' + b'-a-kind', b'LD_' + b'AUDIT=', b'exit 1' + b'25')
        found += [word for word in words if word in content]
print(found)";
    std::fs::write(daemon.file("search.py"), search).unwrap();
    for _ in 0..3 {
        warm_up(&daemon, "/bin/sh").await;
        let env = [("SECRET".to_owned(), secret.to_owned())].into();
        daemon.output(RunRequest { env, ..shell("echo $SECRET") }).await;
        assert!(is_copy(&daemon, shell(IS_COPY)).await);
    }
    let response = daemon.run(shell("python3 search.py; true")).await;
    assert_eq!(response.stdout, "[]\n", "in the memory of a later copy: {}", response.stderr);
}

#[tokio::test]
async fn copies_have_secrets_of_their_own() {
    let daemon = one_place(true).start().await;
    warm_up(&daemon, "/bin/sh").await;
    // AT_RANDOM (25) is the address of 16 random bytes.
    let script = "import struct, os
vector = open(f'/proc/{os.getppid()}/auxv', 'rb').read()
address = dict(struct.iter_unpack('QQ', vector))[25]
with open(f'/proc/{os.getppid()}/mem', 'rb') as memory:
    memory.seek(address)
    print(memory.read(16).hex())";
    std::fs::write(daemon.file("random.py"), script).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..5 {
        warm_up(&daemon, "/bin/sh").await;
        assert!(seen.insert(daemon.output(shell("python3 random.py; true")).await));
    }
}

#[tokio::test]
async fn warm_shells_can_be_switched_off() {
    let daemon = one_place(false).start().await;
    for _ in 0..5 {
        assert!(!is_copy(&daemon, shell(IS_COPY)).await);
        assert!(!daemon.output(shell("cat /proc/*/comm")).await.contains("jig-shell"));
    }
}

/// A sandbox ends after 1,000 runs, while a copy of its template waits.
#[tokio::test]
async fn used_up_sandboxes_end() {
    let daemon = one_place(true).start().await;
    warm_up(&daemon, "/bin/sh").await;
    for _ in 0..1_010 {
        daemon.run(shell(":")).await;
    }
    let count = |name: &str| {
        let has_name =
            |process: &Process| status_field(process.pid, "Name").as_deref() == Some(name);
        descendants(daemon.pid()).iter().filter(|process| has_name(process)).count()
    };
    // One serves the pool, the other may be about to end.
    eventually("no init is left over", async || count("jig-init") <= 2).await;
    warm_up(&daemon, "/bin/sh").await;
    eventually("no template is left over", async || count("jig-shell") <= 2).await;
}
