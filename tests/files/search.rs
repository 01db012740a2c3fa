//! `search`: its response, its time limits, and files that it must not read.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::symlink,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use jig::api::v1::SearchRequest;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use tonic::Request;

use crate::support::{Daemon, Refusal, eventually};

fn search_request(query: &str) -> SearchRequest {
    SearchRequest { query: query.to_owned(), ..SearchRequest::default() }
}

#[tokio::test]
async fn search_uses_the_defaults_of_the_contract() {
    let daemon = Daemon::start().await;
    let lines: String = (1..=80).map(|line| format!("Line {line}.\n")).collect();
    fs::write(daemon.file("text"), lines).unwrap();
    fs::write(daemon.file(".hidden"), "line 1.\n").unwrap();

    let response = daemon.tools().search(search_request("LINE 7.")).await.unwrap().into_inner();
    assert_eq!((response.total_matches, response.files_searched), (1, 1));
    assert!(!response.truncated && !response.timed_out);

    let found = &response.matches[0];
    assert_eq!((&*found.file, found.line, found.column), ("text", 7, 1));
    assert_eq!(found.content, "Line 7.");
    assert_eq!(found.context_before, ["Line 5.", "Line 6."]);
    assert_eq!(found.context_after, ["Line 8.", "Line 9."]);

    let response = daemon.tools().search(search_request("line")).await.unwrap().into_inner();
    assert_eq!((response.matches.len(), response.total_matches), (50, 80));
    assert!(response.truncated);

    for path in ["text", "/workspace/text", ".hidden"] {
        let request = SearchRequest { path: Some(path.to_owned()), ..search_request("line 1.") };
        let response = daemon.tools().search(request).await.unwrap().into_inner();
        let files: Vec<_> = response.matches.iter().map(|found| &*found.file).collect();
        assert_eq!(files, [path.trim_start_matches("/workspace/")]);
    }
}

#[tokio::test]
async fn search_reports_why_a_request_fails() {
    let daemon = Daemon::start().await;
    fs::write(daemon.file("text"), "x").unwrap();
    symlink("text", daemon.file("link")).unwrap();
    let valid = || search_request("x");
    let request_for = |path: &str| SearchRequest { path: Some(path.to_owned()), ..valid() };

    for (request, reason) in [
        (search_request(""), "INVALID_PARAMS"),
        (search_request(&"x".repeat(65_537)), "INVALID_PARAMS"),
        (SearchRequest { context_lines: Some(11), ..valid() }, "INVALID_PARAMS"),
        (SearchRequest { max_results: Some(0), ..valid() }, "INVALID_PARAMS"),
        (SearchRequest { max_results: Some(10_001), ..valid() }, "INVALID_PARAMS"),
        (SearchRequest { max_depth: Some(0), ..valid() }, "INVALID_PARAMS"),
        (SearchRequest { is_regex: Some(true), ..search_request("(") }, "INVALID_REGEX"),
        (
            SearchRequest { is_regex: Some(true), ..search_request("(\\w{900}){900}") },
            "INVALID_REGEX",
        ),
        (search_request("a\nb"), "INVALID_REGEX"),
        (SearchRequest { globs: vec!["[".to_owned()], ..valid() }, "INVALID_GLOB"),
        (SearchRequest { exclude_globs: vec!["{a".to_owned()], ..valid() }, "INVALID_GLOB"),
        (request_for("none"), "FILE_NOT_FOUND"),
        (request_for("link"), "SYMLINK_BLOCKED"),
        (request_for("../x"), "PATH_ESCAPE"),
    ] {
        let request_text = format!("{request:.200?}");
        let status = daemon.tools().search(request).await.unwrap_err();
        assert_eq!(Refusal::from_status(&status).reason, reason, "{request_text}");
    }
}

#[tokio::test]
async fn timed_out_search_returns_partial_results() {
    let daemon = Daemon::start().await;
    fs::write(daemon.file("a"), "needle\n").unwrap();
    let mut large = fs::File::create(daemon.file("b")).unwrap();
    for _ in 0..100 {
        large.write_all("yyyyyyyyyyyyyyyy\n".repeat(50_000).as_bytes()).unwrap();
    }

    let mut request = Request::new(SearchRequest {
        is_regex: Some(true),
        ..search_request("^needle$|(?:[a-z]{1,30}){20}x")
    });
    request.set_timeout(Duration::from_millis(500));
    let start = Instant::now();
    let response = daemon.tools().search(request).await.unwrap().into_inner();
    assert!(response.timed_out, "{response:?} after {:?}", start.elapsed());
    assert_eq!(response.matches.len(), 1);
    assert_eq!(response.matches[0].file, "a");
}

#[tokio::test]
async fn slow_regex_does_not_delay_the_response() {
    let daemon = Daemon::start().await;
    fs::write(daemon.file("a"), "needle\n").unwrap();

    // A match may start at each position, and only its last character decides.
    let mut bits = 1_u64;
    let letters: Vec<u8> = (0..if cfg!(debug_assertions) { 40_000 } else { 1_000_000 })
        .map(|_| {
            bits ^= bits << 13;
            bits ^= bits >> 7;
            bits ^= bits << 17;
            b'a' + u8::from(bits & 1 == 1)
        })
        .collect();
    fs::write(daemon.file("b"), letters).unwrap();

    let mut request = Request::new(SearchRequest {
        is_regex: Some(true),
        ..search_request("^needle$|(?:a|b)*a(?:a|b){1000}[c-y]")
    });
    request.set_timeout(Duration::from_millis(500));
    let response = daemon.tools().search(request).await.unwrap().into_inner();
    assert!(response.timed_out);
    assert_eq!(response.matches.len(), 1);

    // The search thread holds its permit until it ends.
    eventually("the search thread ends", async || {
        daemon.info().await.counts.unwrap().calls_running == 0
    })
    .await;
}

#[tokio::test]
async fn large_ignore_files_do_not_delay_searches() {
    let daemon = Daemon::start().await;
    for name in ["first", "last", "other"] {
        fs::write(daemon.file(name), "needle\n").unwrap();
    }

    let names: String = (0..50_000).map(|name| format!("{name:0100}\n")).collect();
    let wild = format!("{}*\n", "w".repeat(1000)).repeat(1000);
    for (ignore, cut, expected) in [
        (format!("{names}last\n"), 0, ["first", "other"].as_slice()),
        (format!("first\n{names}{names}last\n"), 1, &["last", "other"]),
        (format!("first\n{wild}last\n"), 1, &["other"]),
    ] {
        fs::write(daemon.file(".ignore"), ignore).unwrap();
        let response = daemon.tools().search(search_request("needle")).await;
        let response = response.unwrap().into_inner();
        let files: Vec<_> = response.matches.iter().map(|found| &*found.file).collect();
        assert_eq!((files.as_slice(), response.truncated_ignore_files), (expected, cut));
        assert!(!response.timed_out);
    }
}

#[tokio::test]
async fn search_ends_when_its_caller_disconnects() {
    let daemon = Daemon::start().await;
    let mut large = fs::File::create(daemon.file("large")).unwrap();
    for _ in 0..100 {
        large.write_all("yyyyyyyyyyyyyyyy\n".repeat(50_000).as_bytes()).unwrap();
    }

    let mut tools = daemon.tools();
    let call = tokio::spawn(async move {
        tools
            .search(SearchRequest {
                is_regex: Some(true),
                ..search_request("(?:[a-z]{1,30}){20}x")
            })
            .await
    });

    let events = daemon.state_dir().join("sessions/default/events.jsonl");
    eventually("the search starts", async || {
        fs::read_to_string(&events).is_ok_and(|text| text.contains("tool_call_started"))
    })
    .await;
    call.abort();
    eventually("the search ends", async || daemon.info().await.counts.unwrap().calls_running == 0)
        .await;
    let events = fs::read_to_string(events).unwrap();
    let last = events.lines().last().unwrap();
    assert!(last.contains("\"timed_out\":true"), "{last}");
}

#[tokio::test]
async fn search_response_fits_into_one_message() {
    let daemon = Daemon::start().await;
    let line = [b"\xff".repeat(1900), b"needle\n".to_vec()].concat();
    for name in ["a", "b", "c"] {
        fs::write(daemon.file(name), line.repeat(1000)).unwrap();
    }

    let request = SearchRequest {
        context_lines: Some(10),
        max_results: Some(1000),
        ..search_request("needle")
    };
    let response = daemon.tools().search(request).await.unwrap().into_inner();
    assert!(response.truncated && response.matches.len() > 10);
    assert_eq!(response.total_matches, 3000);
    assert!(prost::Message::encoded_len(&response) < 4 << 20);
}

#[tokio::test]
async fn search_reads_nothing_outside_during_link_exchanges() {
    let daemon = Daemon::start().await;
    let outside = daemon.sibling_path("outside");
    fs::create_dir_all(outside.join("sub")).unwrap();
    fs::write(outside.join("file"), "needle outside\n").unwrap();
    fs::write(outside.join("sub/file"), "needle outside\n").unwrap();
    fs::create_dir_all(daemon.file("inside/sub")).unwrap();
    fs::write(daemon.file("inside/file"), "needle inside\n").unwrap();
    fs::write(daemon.file("inside/sub/file"), "needle inside\n").unwrap();
    symlink(&outside, daemon.file("link")).unwrap();
    symlink(outside.join("file"), daemon.file("file")).unwrap();
    fs::write(daemon.file("plain"), "needle inside\n").unwrap();
    let done = Arc::new(AtomicBool::new(false));

    let exchanger = {
        let (done, workspace) = (Arc::clone(&done), daemon.workspace());
        thread::spawn(move || {
            let exchange = |a: &str, b: &str| {
                let (a, b) = (workspace.join(a), workspace.join(b));
                renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
            };
            while !done.load(Ordering::Relaxed) {
                exchange("inside", "link");
                exchange("file", "plain");
            }
        })
    };

    let mut match_count = 0;
    for _ in 0..1000 {
        let response = daemon.tools().search(search_request("needle")).await;
        for line in response.unwrap().into_inner().matches {
            assert_eq!(line.content, "needle inside", "{}", line.file);
            match_count += 1;
        }
    }

    done.store(true, Ordering::Relaxed);
    exchanger.join().unwrap();
    assert!(match_count > 1000, "only {match_count} matches were checked");
}
