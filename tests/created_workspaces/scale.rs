//! Many created workspaces at a time, and what is left of them.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use rusqlite::{Connection, OpenFlags};
use tokio::{sync::Semaphore, task::JoinSet};

use super::{Creating, idle::template_count, named};
use crate::support::{Setup, eventually_within, full_size};

/// Calls at one time in the test of many workspaces: more would only wait for the processor.
const CONCURRENCY: usize = 16;
/// Longer than the time without a call after which a workspace has no processes.
const IDLE_TIMEOUT: Duration = Duration::from_secs(180);
/// The daemon's memory for an idle workspace, in bytes.
const MAX_IDLE_BYTES: u64 = 1 << 20;
const LIMITS: &str = "max_per_caller = 2000\nmax_entries = 2000\n";
const PERSISTENT: &str = "home = \"persistent\"\ntmp = \"persistent\"\n";

/// Rows of each table of the daemon's database.
fn row_counts(creating: &Creating) -> BTreeMap<String, i64> {
    let path = creating.daemon.state_dir().join("jig.db");
    let database = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let mut tables =
        database.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'").unwrap();
    let tables: Vec<String> =
        tables.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let count = |table: &String| {
        database.query_row(&format!("SELECT count(*) FROM \"{table}\""), [], |row| row.get(0))
    };
    tables.iter().map(|table| (table.clone(), count(table).unwrap())).collect()
}

/// Entries of a directory of the state directory.
fn entry_count(creating: &Creating, name: &str) -> usize {
    fs::read_dir(creating.daemon.state_dir().join(name)).map_or(0, Iterator::count)
}

/// Cgroups of the daemon's runs.
fn cgroup_count(creating: &Creating) -> usize {
    fn count(directory: &Path, name: &str) -> usize {
        let children = fs::read_dir(directory).into_iter().flatten().flatten();
        let directories = children.filter(|entry| entry.file_type().is_ok_and(|it| it.is_dir()));
        directories
            .map(|entry| {
                let path = entry.path();
                let is_of_daemon = path.to_str().is_some_and(|path| path.contains(name));
                usize::from(is_of_daemon) + count(&path, name)
            })
            .sum()
    }
    count(Path::new("/sys/fs/cgroup"), &format!("jig-runs-{}", creating.daemon.pid()))
}

/// Creates a workspace. Returns how long that took, and with its first command.
async fn create_and_use(creating: &Creating, name: &str) -> [Duration; 2] {
    let start = Instant::now();
    creating.create(named(name)).await;
    let created = start.elapsed();
    let output = creating.output_in(name, "echo $PWD; echo 1 > f; echo 1 > /tmp/f; ls").await;
    assert_eq!(output, "/workspace\nf\n");
    [created, start.elapsed()]
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent).div_ceil(100) - 1]
}

fn report(what: &str, mut times: Vec<Duration>) {
    let (p50, p99) = (percentile(&mut times, 50), percentile(&mut times, 99));
    eprintln!("{what}, {} workspaces: p50 {p50:?}, p99 {p99:?}", times.len());
}

#[tokio::test]
async fn samples_in_parallel_leave_nothing() {
    let samples = full_size(200, 24);
    let creating = Creating::start(Setup::new(), &format!("{LIMITS}{PERSISTENT}")).await;
    // A session, and the sandboxes of the workspace of the configuration.
    creating.output_in("workspace", "true").await;
    let creating = Arc::new(creating);
    let before = (row_counts(&creating), entry_count(&creating, "changes"));
    let sessions = entry_count(&creating, "sessions");

    let mut running = JoinSet::new();
    for number in 0..samples {
        let creating = Arc::clone(&creating);
        running.spawn(async move {
            let name = format!("sample-{number}");
            let times = create_and_use(&creating, &name).await;
            creating.delete(&name).await.unwrap();
            times
        });
    }
    let times = running.join_all().await;
    report("creation in parallel", times.iter().map(|times| times[0]).collect());
    report("creation and first command in parallel", times.iter().map(|times| times[1]).collect());

    assert_eq!(creating.names().await, ["workspace"]);
    assert!(creating.directories().is_empty(), "{:?}", creating.directories());
    assert_eq!((row_counts(&creating), entry_count(&creating, "changes")), before);
    assert_eq!(entry_count(&creating, "sessions"), sessions);
    // With the processes, their mount namespaces end.
    eventually_within(IDLE_TIMEOUT, "all processes of samples are gone", async || {
        template_count(&creating) == 1 && cgroup_count(&creating) < 16
    })
    .await;
}

#[tokio::test]
async fn idle_workspaces_take_little_memory() {
    let count = full_size(1000, 20);
    let creating = Creating::start(Setup::new(), LIMITS).await;
    // What is made once, such as threads, is there.
    for number in 0..CONCURRENCY {
        let name = format!("first-{number}");
        create_and_use(&creating, &name).await;
        creating.delete(&name).await.unwrap();
    }
    let before = creating.daemon.resident_bytes();

    let (creating, permits) = (Arc::new(creating), Arc::new(Semaphore::new(CONCURRENCY)));
    let mut running = JoinSet::new();
    for number in 0..count {
        let (creating, permits) = (Arc::clone(&creating), Arc::clone(&permits));
        running.spawn(async move {
            let _permit = permits.acquire().await.unwrap();
            create_and_use(&creating, &format!("w{number}")).await
        });
    }
    let times = running.join_all().await;
    report("creation, 16 at a time", times.iter().map(|times| times[0]).collect());
    report(
        "creation and first command, 16 at a time",
        times.iter().map(|times| times[1]).collect(),
    );
    assert_eq!(creating.directories().len(), count);

    eventually_within(IDLE_TIMEOUT, "no workspace has processes", async || {
        template_count(&creating) == 1
    })
    .await;
    let after = creating.daemon.resident_bytes();
    let each = after.saturating_sub(before) / count as u64;
    eprintln!("{count} idle workspaces: {} KiB each, {} MiB in all", each >> 10, after >> 20);
    assert!(each <= MAX_IDLE_BYTES, "{each} bytes for each idle workspace: {before} → {after}");
    assert_eq!(creating.output_in("w7", "cat f").await, "1\n");
}
