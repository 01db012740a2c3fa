//! The contract of `Run` for ordinary commands.

use std::{collections::BTreeMap, fs, time::Instant};

use jig::api::v1::{Outcome, RunRequest};
use tonic::Request;

use crate::support::{Daemon, MAX_REACTION_TIME, Mark, Setup, argv, shell};

#[tokio::test]
async fn command_runs_in_a_shell_and_argv_runs_directly() {
    let daemon = Daemon::start().await;

    let response = daemon.run(shell("echo out; echo $((6 * 7)) >&2; exit 3")).await;
    assert_eq!(response.outcome(), Outcome::Exited);
    assert_eq!(response.exit_code, Some(3));
    assert_eq!((response.stdout.as_str(), response.stdout_bytes), ("out\n", 4));
    assert_eq!((response.stderr.as_str(), response.stderr_bytes), ("42\n", 3));
    assert!(!response.stdout_truncated && !response.stderr_truncated);
    assert_eq!(response.signal, "");
    assert_eq!(response.limit, "");
    assert!(!response.kill_pending);
    assert_eq!(response.isolation, "L3");
    assert!(response.usage.is_some());

    let output = daemon.output(argv(&["printf", "%s|", "a b", "$HOME", "*", "", "'\n"])).await;
    assert_eq!(output, "a b|$HOME|*||'\n|");
    assert_eq!(
        daemon.output(argv(&["/bin/sh", "-c", "echo $0 $1", "zero", "one"])).await,
        "zero one\n"
    );
}

#[tokio::test]
async fn environment_has_documented_variables_and_request_additions() {
    let daemon = Daemon::start().await;

    let variables = |output: &str| -> BTreeMap<String, String> {
        let pairs = output.lines().filter_map(|line| line.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    };
    let plain = variables(&daemon.output(argv(&["env"])).await);
    let names: Vec<&str> = plain.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TRACEPARENT", "USER"]
    );

    let value = |name: &str| plain.get(name).unwrap().as_str();
    assert_eq!(value("HOME"), "/home/agent");
    assert_eq!((value("USER"), value("LOGNAME")), ("agent", "agent"));
    assert_eq!(value("SHELL"), "/bin/sh");
    assert_eq!(value("TMPDIR"), "/tmp");
    assert!(value("PATH").split(':').any(|path| path == "/usr/bin"), "{}", value("PATH"));
    assert!(value("LANG").to_lowercase().replace('-', "").ends_with("utf8"), "{}", value("LANG"));

    let parts: Vec<&str> = value("TRACEPARENT").split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    assert_eq!(lengths, [2, 32, 16, 2], "{}", value("TRACEPARENT"));

    let request = RunRequest {
        env: [("GREETING", "hello = there"), ("HOME", "/tmp"), ("EMPTY", "")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        ..argv(&["env"])
    };
    let added = variables(&daemon.output(request).await);
    assert_eq!(added.get("GREETING").unwrap(), "hello = there");
    assert_eq!(added.get("HOME").unwrap(), "/tmp");
    assert_eq!(added.get("EMPTY").unwrap(), "");
    assert_eq!(added.len(), plain.len() + 2);
}

#[tokio::test]
async fn program_is_found_in_the_path_of_the_request() {
    let daemon = Daemon::start().await;

    fs::create_dir(daemon.file("tools")).unwrap();
    daemon
        .output(shell("printf '#!/bin/sh\\necho mine\\n' > tools/hello; chmod 755 tools/hello"))
        .await;
    daemon.run_failing(argv(&["hello"]), "COMMAND_NOT_FOUND").await;
    let request = RunRequest {
        env: [("PATH".to_owned(), "/nowhere:/workspace/tools:/usr/bin:/bin".to_owned())].into(),
        ..argv(&["hello"])
    };
    assert_eq!(daemon.output(request).await, "mine\n");
}

#[tokio::test]
async fn command_starts_in_the_requested_directory() {
    let daemon = Daemon::start().await;
    fs::create_dir_all(daemon.file("a/b c")).unwrap();
    let pwd = |cwd: &str| RunRequest { cwd: Some(cwd.to_owned()), ..argv(&["/bin/pwd"]) };
    assert_eq!(daemon.output(argv(&["/bin/pwd"])).await, "/workspace\n");

    for (cwd, expected) in [
        (".", "/workspace\n"),
        ("", "/workspace\n"),
        ("a", "/workspace/a\n"),
        ("a/b c", "/workspace/a/b c\n"),
        ("a/./b c/..", "/workspace/a\n"),
        ("/workspace", "/workspace\n"),
        ("/workspace/a/", "/workspace/a\n"),
        ("/workspace/../workspace/a", "/workspace/a\n"),
    ] {
        assert_eq!(daemon.output(pwd(cwd)).await, expected, "{cwd:?}");
    }
}

#[tokio::test]
async fn input_reaches_the_command_byte_for_byte() {
    let daemon = Daemon::start().await;
    let input: Vec<u8> = (0..=255).cycle().take(1_000_000).collect();
    let request = RunRequest { stdin: input.clone().into(), ..shell("cat > copy; echo $?") };
    assert_eq!(daemon.output(request).await, "0\n");
    assert_eq!(fs::read(daemon.file("copy")).unwrap(), input);
}

#[tokio::test]
async fn output_over_the_limit_keeps_its_head_and_its_tail() {
    let daemon = Daemon::start().await;

    let numbers: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    let request =
        |limit| RunRequest { max_output_bytes: Some(limit), ..shell("seq 100000; seq 100000 >&2") };
    let response = daemon.run(request(1000)).await;

    for (text, total, truncated, path) in [
        (&response.stdout, response.stdout_bytes, response.stdout_truncated, &response.stdout_path),
        (&response.stderr, response.stderr_bytes, response.stderr_truncated, &response.stderr_path),
    ] {
        assert_eq!(total, numbers.len() as u64);
        assert!(truncated);
        assert!(text.starts_with("1\n2\n3\n"), "{text}");
        assert!(text.ends_with("99999\n100000\n"), "{text}");
        assert!(text.len() < 1200, "{text}");
        assert_eq!(daemon.artifact(path).await.0, numbers.as_bytes());
    }

    let nothing = daemon.run(request(0)).await;
    assert!(nothing.stdout_truncated);
    assert!(!nothing.stdout.contains("99999"), "{}", nothing.stdout);
    assert_eq!(nothing.stdout_bytes, numbers.len() as u64);

    let everything = daemon.run(request(2_000_000)).await;
    assert_eq!(everything.stdout, numbers);
    assert!(!everything.stdout_truncated);
}

#[tokio::test]
async fn each_run_has_its_own_artifacts() {
    let daemon = Daemon::start().await;

    let mut paths = Vec::new();
    for step in 0..3 {
        let response = daemon.run(shell(&format!("echo out {step}"))).await;
        assert!(response.stdout_path.starts_with("logs/tool_step_"), "{response:?}");
        assert!(response.stdout_path.ends_with("_stdout.txt"), "{response:?}");
        assert!(response.stderr_path.ends_with("_stderr.txt"), "{response:?}");
        paths.push((response.stdout_path, format!("out {step}\n")));
        paths.push((response.stderr_path, String::new()));
    }

    for (path, content) in &paths {
        let (found, size) = daemon.artifact(path).await;
        assert_eq!(String::from_utf8(found).unwrap(), *content, "{path}");
        assert_eq!(size, content.len() as u64, "{path}");
    }

    let mut names: Vec<&String> = paths.iter().map(|(path, _)| path).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), paths.len());
}

#[tokio::test]
async fn concurrent_runs_get_their_own_responses() {
    let daemon = Setup::new().exclusive().start().await;
    let runs: Vec<_> = (0..40)
        .map(|number| {
            daemon.spawn_run(shell(&format!("cat > {number}; echo {number}; exit {number}")))
        })
        .collect();
    for (number, run) in runs.into_iter().enumerate() {
        let response = run.await.unwrap().unwrap();
        assert_eq!(response.exit_code, Some(i32::try_from(number).unwrap()));
        assert_eq!(response.stdout, format!("{number}\n"));
    }
}

#[tokio::test]
async fn run_reports_usage_and_duration() {
    let daemon = Daemon::start().await;

    let began = Instant::now();
    let response =
        daemon.run(shell("sleep 0.3; i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done")).await;
    let elapsed_ms = began.elapsed().as_millis();
    let usage = response.usage.unwrap();
    assert!(usage.user_ms + usage.system_ms > 0, "{usage:?}");
    assert!(usage.max_rss_bytes > 100_000, "{usage:?}");
    assert!(
        (300..=elapsed_ms).contains(&u128::from(response.duration_ms)),
        "{response:?} took {elapsed_ms} ms"
    );
}

#[tokio::test]
async fn every_response_has_a_call_id() {
    let daemon = Daemon::start().await;

    let mut ids = Vec::new();
    for _ in 0..2 {
        let response = daemon.tools().run(Request::new(shell("true"))).await.unwrap();
        ids.push(response.metadata().get("jig-call-id").unwrap().to_str().unwrap().to_owned());
    }
    assert!(ids.iter().all(|id| id.len() == 26), "each id is a ULID: {ids:?}");
    assert_ne!(ids.first(), ids.last());

    let refused = daemon.tools().run(Request::new(RunRequest::default())).await.unwrap_err();
    assert!(refused.metadata().get("jig-call-id").is_some(), "{refused:?}");
}

#[tokio::test]
async fn builds_and_shell_features_work() {
    let daemon = Daemon::start().await;

    let began = Instant::now();
    fs::write(daemon.file("main.c"), "#include <stdio.h>\nint main(void) { puts(\"built\"); }\n")
        .unwrap();
    fs::write(daemon.file("Makefile"), "a b: main.c\n\tgcc -o $@ main.c\nall: a b\n").unwrap();
    let output = daemon.output(shell("make -s -j2 all && ./a && ./b && rm a")).await;
    assert_eq!(output, "built\nbuilt\n");

    // Pipes, here-documents, job control, loopback, temporary files, locks, links and time stamps.
    let output = daemon
        .output(argv(&[
            "bash",
            "-c",
            "set -em; sleep 1000 & kill %1; wait %1 || true; cat <<< text | tr t T; \
             file=$(mktemp); echo x > $file; (flock 9; echo locked) 9> lock; ln -s lock link; ln lock hard; \
             touch -d 2001-02-03 lock; mkdir -m 700 d; mv d e; rmdir e; date -r lock +%Y; id -un; \
             hostname; echo $HOME > ~/file; cat ~/file; (exec 3<> /dev/tcp/127.0.0.1/9) 2> /dev/null || echo refused",
        ]))
        .await;
    assert_eq!(output, "TexT\nlocked\n2001\nagent\njig\n/home/agent\nrefused\n");
    assert!(began.elapsed() < MAX_REACTION_TIME * 4, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_long_command_line_and_a_large_environment_arrive_whole() {
    let daemon = Daemon::start().await;

    let long = "x".repeat(120_000);
    assert_eq!(daemon.run(argv(&["printf", "%s", &long])).await.stdout_bytes, 120_000);

    let line = shell(&format!(": {long}; echo end"));
    assert_eq!(daemon.output(line).await, "end\n");

    let arguments: Vec<String> = (0..10_000).map(|number| number.to_string()).collect();
    let arguments: Vec<&str> = ["sh", "-c", "echo $# $1 ${10000}", "sh"]
        .into_iter()
        .chain(arguments.iter().map(String::as_str))
        .collect();
    assert_eq!(daemon.output(argv(&arguments)).await, "10000 0 9999\n");

    let large = RunRequest {
        env: (0..10).map(|number| (format!("V{number}"), long.clone())).collect(),
        ..shell("echo ${#V0} ${#V9}")
    };
    assert_eq!(daemon.output(large).await, "120000 120000\n");
}

#[tokio::test]
async fn run_that_ends_at_its_timeout_leaves_no_processes() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    for _ in 0..3 {
        let response = daemon
            .run(mark.on(RunRequest { timeout_sec: Some(1), ..shell("sleep 1000 & sleep 1") }))
            .await;
        mark.assert_gone();
        match response.outcome() {
            Outcome::Exited => assert_eq!(response.exit_code, Some(0)),
            Outcome::TimedOut => assert_eq!(response.exit_code, None),
            outcome => panic!("{outcome:?}"),
        }
    }
}
