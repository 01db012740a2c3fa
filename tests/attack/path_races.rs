//! Commands that change the meaning of a path while a tool resolves it.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    os::unix::fs::{FileTypeExt as _, symlink},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use jig::api::v1::{Outcome, RunRequest, RunResponse};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tokio::task::{JoinHandle, JoinSet};
use tonic::Status;

use crate::{
    files::tools::{NOTEBOOK, Tool},
    support::{Daemon, Refusal, argv, compile_in_workspace, full_size, promptly},
};

/// How often each call must succeed, so that the race is a real one.
const MIN_SUCCESSES_PER_CALL: u32 = 5;
/// At most this many times the requested rounds, until each call has succeeded often enough.
const MAX_ROUNDS_FACTOR: usize = 100;
/// The calls to make, on paths through the directory or to it. Some delete what others create.
const RACED_CALLS: &[(Tool, &str)] = &[
    (Tool::Read, "d/f"),
    (Tool::Write, "d/f"),
    (Tool::Edit, "d/f"),
    (Tool::Patch, "d/f"),
    (Tool::Stat, "d/f"),
    (Tool::Search, "d/f"),
    (Tool::MoveTo, "d/f"),
    (Tool::MoveFrom, "d/f"),
    (Tool::Delete, "d/f"),
    (Tool::ReadNotebook, "d/n"),
    (Tool::EditNotebook, "d/n"),
    (Tool::Download, "d/n"),
    (Tool::Upload, "d/up"),
    (Tool::UploadTree, "d"),
    (Tool::UploadTree, "d/new/tree"),
    (Tool::DownloadTree, "d"),
    (Tool::CreateDirectory, "d/new/deep"),
    (Tool::Delete, "d/new"),
    (Tool::ListFiles, "d"),
    (Tool::ListDirectory, "d"),
    (Tool::Search, "d"),
    (Tool::Stat, "d"),
];

/// A command that swaps two names until the file `stop` exists.
fn swap_request(daemon: &Daemon, names: [&str; 2]) -> RunRequest {
    let program = compile_in_workspace(daemon, "swap");
    RunRequest { timeout_sec: Some(86_400), ..argv(&[&program, names[0], names[1]]) }
}

/// Waits for the swapping command, which must exit by itself.
async fn wait_for_swapper(swapper: JoinHandle<Result<RunResponse, Status>>) {
    let response = promptly("the swapper ends", swapper).await.unwrap().unwrap();
    assert_eq!(response.outcome(), Outcome::Exited, "{response:?}");
}

/// Repeats a call until all calls have run `rounds` times and succeeded often enough. `unfinished`
/// counts those that have not. Returns how often the call ended in each way: "OK" or the reason of a
/// refusal.
async fn repeat_call(
    daemon: &Daemon,
    (tool, path): (Tool, &str),
    rounds: usize,
    unfinished: &AtomicUsize,
) -> BTreeMap<String, u32> {
    let mut ends: BTreeMap<String, u32> = BTreeMap::new();
    let mut is_done = false;
    for round in 1..=rounds * MAX_ROUNDS_FACTOR {
        let end = match tool.call(daemon, path).await {
            Ok(response) => {
                assert!(!response.contains("secret"), "{tool:?} {path}: {response}");
                "OK".to_owned()
            }
            Err(status) => {
                assert!(!status.message().contains("secret"), "{tool:?}: {status:?}");
                Refusal::from_status(&status).reason
            }
        };
        *ends.entry(end).or_default() += 1;

        if !is_done && round >= rounds && has_enough_successes(&ends) {
            is_done = true;
            unfinished.fetch_sub(1, Ordering::Relaxed);
        }
        // A call that is done continues as long as other calls may depend on its effects.
        if unfinished.load(Ordering::Relaxed) == 0 {
            break;
        }
    }
    ends
}

fn has_enough_successes(ends: &BTreeMap<String, u32>) -> bool {
    ends.get("OK").is_some_and(|count| *count >= MIN_SUCCESSES_PER_CALL)
}

#[tokio::test(flavor = "multi_thread")]
async fn case_39_file_tools_withstand_a_directory_swapped_for_a_link() {
    let rounds = full_size(100_000, 200);
    let daemon = Arc::new(Daemon::start().await);
    let outside = daemon.sibling_path("outside");
    for (directory, text) in [(&outside, "secret written"), (&daemon.file("d"), "written")] {
        fs::create_dir(directory).unwrap();
        rustix::fs::chmod(directory, Mode::from_raw_mode(0o777)).unwrap();
        fs::write(directory.join("f"), text).unwrap();
        fs::write(directory.join("n"), NOTEBOOK.replace("TEXT", text)).unwrap();
    }

    symlink(&outside, daemon.file("l")).unwrap();
    let swapper = daemon.spawn_run(swap_request(&daemon, ["d", "l"]));

    let mut tasks = JoinSet::new();
    let unfinished = Arc::new(AtomicUsize::new(RACED_CALLS.len()));
    for call in RACED_CALLS {
        let (daemon, unfinished) = (Arc::clone(&daemon), Arc::clone(&unfinished));
        tasks.spawn(async move { (call, repeat_call(&daemon, *call, rounds, &unfinished).await) });
    }

    while let Some(result) = tasks.join_next().await {
        let ((tool, path), ends) = result.unwrap();
        assert!(!ends.contains_key("INTERNAL"), "{tool:?} {path}: {ends:?}");
        assert!(has_enough_successes(&ends), "{tool:?} {path} succeeded too rarely: {ends:?}");
        let describes_the_link = (*tool, *path) == (Tool::Stat, "d");
        assert!(
            describes_the_link || ends.contains_key("SYMLINK_BLOCKED"),
            "{tool:?} {path} never met the link: {ends:?}"
        );
    }

    fs::write(daemon.file("stop"), "").unwrap();
    wait_for_swapper(swapper).await;

    let content = |name: &str| fs::read_to_string(outside.join(name)).unwrap();
    assert_eq!(content("f"), "secret written");
    assert_eq!(content("n"), NOTEBOOK.replace("TEXT", "secret written"));
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 2);
    assert!(!daemon.log().contains("panic"), "{}", daemon.log());
}

#[tokio::test]
async fn case_46_file_tools_do_not_block_on_a_swapped_fifo() {
    let rounds = full_size(10_000, 300);
    let daemon = Daemon::start().await;
    let fifo = daemon.file("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    fs::write(daemon.file("f"), "written").unwrap();
    let swapper = daemon.spawn_run(swap_request(&daemon, ["f", "fifo"]));
    let tools = [Tool::Read, Tool::Stat, Tool::Search, Tool::Edit, Tool::Upload, Tool::Download];

    // The tools that found a file at the name, and those that found the FIFO.
    let (mut files, mut fifos) = (HashSet::new(), HashSet::new());
    for round in 0..rounds * MAX_ROUNDS_FACTOR {
        for tool in tools {
            let result = promptly("the tool ends", tool.call(&daemon, "f")).await;
            if result.is_ok() {
                files.insert(tool);
            }
            if let Err(status) = result {
                let reason = Refusal::from_status(&status).reason;
                let expected = ["NOT_A_FILE", "STALE_FILE", "STRING_NOT_FOUND", "FILE_NOT_FOUND"];
                assert!(expected.contains(&reason.as_str()), "{tool:?}: {status:?}");
                if reason == "NOT_A_FILE" {
                    fifos.insert(tool);
                }
            }
        }

        // Stat succeeds on the FIFO as well.
        if round >= rounds && files.len() == tools.len() && fifos.len() + 1 == tools.len() {
            break;
        }
    }

    fs::write(daemon.file("stop"), "").unwrap();
    wait_for_swapper(swapper).await;

    let is_fifo = |name| {
        let metadata = fs::symlink_metadata(daemon.file(name)).unwrap();
        metadata.file_type().is_fifo()
    };
    assert!(is_fifo("f") ^ is_fifo("fifo"), "a tool has replaced the FIFO");
    assert_eq!((files.len(), fifos.len()), (6, 5), "{files:?} {fifos:?}");
}
