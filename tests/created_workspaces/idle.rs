//! Processes of created workspaces that have had no call for a while.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinSet;

use super::{Creating, named};
use crate::support::{Setup, descendants, eventually_within, status_field};

/// Longer than the time without a call after which a workspace has no processes.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Names of all processes of a daemon, zombies too.
fn process_names(creating: &Creating) -> Vec<String> {
    let processes = descendants(creating.daemon.pid());
    processes.iter().filter_map(|process| status_field(process.pid, "Name")).collect()
}

pub(super) fn template_count(creating: &Creating) -> usize {
    process_names(creating).iter().filter(|name| *name == "jig-template").count()
}

/// Uses `count` created workspaces, and waits until they have no processes, not even zombies.
async fn use_until_idle(setup: Setup, count: usize) {
    let creating = Arc::new(Creating::start(setup, "").await);
    let mut uses = JoinSet::new();
    for number in 0..count {
        let creating = Arc::clone(&creating);
        uses.spawn(async move {
            let name = format!("w{number}");
            creating.create(named(&name)).await;
            assert_eq!(creating.output_in(&name, "echo used").await, "used\n");
        });
    }
    uses.join_all().await;
    // On a busy machine, the first have been idle for long enough.
    assert!(template_count(&creating) > 1, "{:?}", process_names(&creating));

    let what = "only the workspace of the configuration has processes";
    eventually_within(IDLE_TIMEOUT, what, async || template_count(&creating) == 1).await;
    assert!(process_names(&creating).len() < count, "{:?}", process_names(&creating));
    assert_eq!(creating.output_in("w1", "echo again").await, "again\n");
}

/// The launcher reaps templates.
#[tokio::test]
async fn idle_workspaces_have_no_processes() {
    use_until_idle(Setup::new(), 60).await;
}

/// The keeper reaps templates.
#[tokio::test]
async fn idle_workspaces_at_l1_have_no_processes() {
    use_until_idle(Setup::new().at_l1(), 20).await;
}
