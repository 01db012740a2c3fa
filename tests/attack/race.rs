//! Commands that change what a path means while a tool is on its way along it.

use std::{collections::BTreeMap, fs, os::unix::fs::symlink, sync::Arc};

use jig::api::v1::RunRequest;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tokio::task::JoinSet;

use crate::{
    files::tools::Tool,
    support::{Daemon, Refusal, argv, compile, full_size, promptly},
};

const TOOLS: &[Tool] = &[
    Tool::Read,
    Tool::Write,
    Tool::Edit,
    Tool::Patch,
    Tool::ReadNotebook,
    Tool::EditNotebook,
    Tool::Download,
    Tool::Upload,
    Tool::CreateDirectory,
    Tool::Stat,
    Tool::Search,
    Tool::MoveTo,
    Tool::MoveFrom,
    Tool::Delete,
];
/// Tools that work on the directory itself.
const ON_DIRECTORIES: &[Tool] = &[
    Tool::ListFiles,
    Tool::ListDirectory,
    Tool::Search,
    Tool::Stat,
];

/// Has a command swap two names until it is stopped.
fn swapping(daemon: &Daemon, names: [&str; 2]) -> RunRequest {
    let program = compile(daemon, "swap");
    RunRequest {
        timeout_sec: Some(3600),
        ..argv(&[&program, names[0], names[1]])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_39_a_directory_that_becomes_a_link_and_back_leads_nowhere() {
    let rounds = full_size(100_000, 200);
    let daemon = Arc::new(Daemon::start().await);
    let outside = daemon.beside("outside");
    for folder in [&outside, &daemon.file("d")] {
        fs::create_dir(folder).unwrap();
        rustix::fs::chmod(folder, Mode::from_raw_mode(0o777)).unwrap();
    }
    fs::write(outside.join("f"), "secret written").unwrap();
    fs::write(daemon.file("d/f"), "written").unwrap();
    symlink(&outside, daemon.file("l")).unwrap();
    let swapping = daemon.begin(swapping(&daemon, ["d", "l"]));

    let mut tasks = JoinSet::new();
    let in_directory = TOOLS.iter().map(|tool| (*tool, "d/f"));
    let directory = ON_DIRECTORIES.iter().map(|tool| (*tool, "d"));
    for (tool, path) in in_directory.chain(directory) {
        let daemon = Arc::clone(&daemon);
        tasks.spawn(async move {
            let mut ends: BTreeMap<String, u32> = BTreeMap::new();
            for _ in 0..rounds {
                let end = match tool.call(&daemon, path).await {
                    Ok(answer) => {
                        assert!(!answer.contains("secret"), "{tool:?}: {answer}");
                        "OK".to_owned()
                    }
                    Err(status) => {
                        assert!(!status.message().contains("secret"), "{status:?}");
                        Refusal::of(&status).reason
                    }
                };
                *ends.entry(end).or_default() += 1;
            }
            (tool, ends)
        });
    }
    while let Some(ended) = tasks.join_next().await {
        let (tool, ends) = ended.unwrap();
        assert!(!ends.contains_key("INTERNAL"), "{tool:?}: {ends:?}");
    }
    fs::write(daemon.file("stop"), "").unwrap();
    promptly("the command", swapping).await.unwrap().unwrap();
    assert_eq!(
        fs::read_to_string(outside.join("f")).unwrap(),
        "secret written"
    );
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert!(!daemon.log().contains("panic"), "{}", daemon.log());
}

#[tokio::test]
async fn case_46_a_file_that_becomes_a_fifo_holds_up_nobody() {
    let rounds = full_size(10_000, 300);
    let daemon = Daemon::start().await;
    let fifo = daemon.file("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    fs::write(daemon.file("f"), "written").unwrap();
    let swapping = daemon.begin(swapping(&daemon, ["f", "fifo"]));
    for _ in 0..rounds {
        for tool in [
            Tool::Read,
            Tool::Stat,
            Tool::Search,
            Tool::Edit,
            Tool::Upload,
            Tool::Download,
        ] {
            if let Err(status) = promptly("a tool", tool.call(&daemon, "f")).await {
                let reason = Refusal::of(&status).reason;
                let expected = [
                    "NOT_A_FILE",
                    "STALE_FILE",
                    "STRING_NOT_FOUND",
                    "FILE_NOT_FOUND",
                ];
                assert!(expected.contains(&reason.as_str()), "{tool:?}: {status:?}");
            }
        }
    }
    fs::write(daemon.file("stop"), "").unwrap();
    promptly("the command", swapping).await.unwrap().unwrap();
}
