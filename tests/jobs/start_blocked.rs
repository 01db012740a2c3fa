//! Jobs that cannot start yet: they stay queued without side effects, whatever is short, and are
//! authorized again before they start.

use std::{fs, sync::Arc};

use jig::api::v1::{
    Approval, DecideApprovalRequest, Decision, GetInfoRequest, JobState, ListApprovalsRequest,
    RunResponse, approval_service_client::ApprovalServiceClient,
    daemon_service_client::DaemonServiceClient,
};
use tokio::task::JoinHandle;
use tonic::Status;

use super::{Jobs, WAIT_FOR_GO_FILE, callers::Caller, command_job, expect_result};
use crate::{
    callers::start_daemon_with_keys,
    support::{Daemon, KeyFile, Setup, eventually, promptly, shell, with_key},
};

/// The pending approvals that the holder of `key` sees.
pub(super) async fn pending_approvals_with_key(
    daemon: &Daemon,
    key: Option<&str>,
) -> Vec<Approval> {
    let mut approvals = ApprovalServiceClient::new(daemon.channel());
    let request = with_key(key.unwrap_or_default(), ListApprovalsRequest::default());
    let response = approvals.list_approvals(request).await;
    response.unwrap().into_inner().approvals
}

/// Waits until exactly `count` approvals are pending.
pub(crate) async fn wait_for_pending_approvals_with_key(
    daemon: &Daemon,
    key: Option<&str>,
    count: usize,
) -> Vec<Approval> {
    let mut pending = Vec::new();
    eventually(&format!("{count} approvals are pending"), async || {
        pending = pending_approvals_with_key(daemon, key).await;
        pending.len() == count
    })
    .await;
    pending
}

pub(crate) async fn allow(daemon: &Daemon, key: Option<&str>, approval: &Approval) {
    let mut approvals = ApprovalServiceClient::new(daemon.channel());
    let request = DecideApprovalRequest {
        approval_id: approval.approval_id.clone(),
        decision: Decision::Allow.into(),
        ..DecideApprovalRequest::default()
    };
    let request = with_key(key.unwrap_or_default(), request);
    approvals.decide_approval(request).await.unwrap();
}

#[tokio::test]
async fn jobs_beyond_approval_quota_stay_queued() {
    let table = "[jobs]\nqueue_concurrency = 1\n[policy]\ndangerous = \"ask\"\n[approvals]\nmax_pending = 4\n";
    let daemon = Setup::new().workspace_table(table).start().await;
    let mut jobs = Jobs::of(&daemon);

    let mut ids = Vec::new();
    for number in 0..8 {
        let line = format!("echo {number} >> order");
        ids.push(jobs.submit(command_job(&line)).await);
    }

    // One caller may have three of the four pending approvals: one stays free for others.
    wait_for_pending_approvals_with_key(&daemon, None, 3).await;
    for id in &ids {
        assert_eq!(jobs.get(id).await.state(), JobState::Queued);
    }

    // A job cancelled before it gets a permit requests no approval.
    jobs.cancel(&ids[6]).await;
    for index in (0..7).rev() {
        let pending = wait_for_pending_approvals_with_key(&daemon, None, (index + 1).min(3)).await;
        // Approvals appear one after the other, in the order of submission.
        let oldest = pending.iter().min_by_key(|approval| &approval.approval_id);
        allow(&daemon, None, oldest.unwrap()).await;
    }

    for (number, id) in ids.iter().enumerate() {
        let job = promptly("the job ends", jobs.wait(id)).await;
        if number == 6 {
            assert_eq!(job.state(), JobState::Cancelled);
        } else {
            expect_result(job, JobState::Succeeded);
        }
    }

    let order = fs::read_to_string(daemon.file("order")).unwrap();
    let mut order: Vec<_> = order.lines().collect();
    order.sort_unstable();
    assert_eq!(order, ["0", "1", "2", "3", "4", "5", "7"]);
}

/// A caller limited to one concurrent call. That call runs until the file `go` exists, and a job of
/// the caller waits for it.
struct BusyCaller {
    daemon: Daemon,
    keys: Arc<KeyFile>,
    caller: Caller,
    job: String,
    call: JoinHandle<Result<RunResponse, Status>>,
    /// Another caller, which may see all jobs and approvals.
    admin: Caller,
}

impl BusyCaller {
    async fn start(table: &str, setup: Setup) -> Self {
        let keys = Arc::new(KeyFile::new());
        let key = keys.add_key("one", "invoke", &["--concurrent-calls", "1"]);
        let admin = keys.add_key("admin", "admin", &[]);
        let daemon = start_daemon_with_keys(setup.workspace_table(table), &keys).await;
        let mut caller = Caller::new(&daemon, &key);
        let admin = Caller::new(&daemon, &admin);

        let call =
            daemon.spawn_run(with_key(&key, shell(&format!("touch begun; {WAIT_FOR_GO_FILE}"))));
        let needs_approval = table.contains("ask");
        if needs_approval {
            let pending = wait_for_pending_approvals_with_key(&daemon, Some(&admin.key), 1).await;
            allow(&daemon, Some(&admin.key), &pending[0]).await;
        }

        eventually("the call runs", async || daemon.file("begun").exists()).await;
        let job = caller.submit("q", command_job("echo ran >> runs")).await;
        if needs_approval {
            let pending = wait_for_pending_approvals_with_key(&daemon, Some(&admin.key), 1).await;
            allow(&daemon, Some(&admin.key), &pending[0]).await;
        }

        let mut info = DaemonServiceClient::new(daemon.channel());
        eventually("the job waits for a permit", async || {
            let request = with_key(&admin.key, GetInfoRequest {});
            let response = info.get_info(request).await.unwrap().into_inner();
            response.counts.unwrap().calls_queued == 1
        })
        .await;

        Self { daemon, keys, caller, job, call, admin }
    }

    fn release(&self) {
        fs::write(self.daemon.file("go"), "").unwrap();
    }

    fn runs(&self) -> String {
        fs::read_to_string(self.daemon.file("runs")).unwrap_or_default()
    }
}

#[tokio::test]
async fn job_waiting_for_permit_survives_restart() {
    let mut busy = BusyCaller::start("", Setup::new()).await;
    assert_eq!(busy.caller.state(&busy.job).await, JobState::Queued);
    busy.daemon = busy.daemon.restart().await;
    busy.call.await.unwrap().unwrap_err();
    let mut caller = Caller::new(&busy.daemon, &busy.caller.key);
    expect_result(caller.wait(&busy.job).await, JobState::Succeeded);
    assert_eq!(fs::read_to_string(busy.daemon.file("runs")).unwrap(), "ran\n");
}

#[tokio::test]
async fn key_revoked_before_start_fails_job() {
    let mut busy = BusyCaller::start("", Setup::new()).await;
    assert!(busy.keys.run_jig_key(&["revoke", "one"]).status.success());
    busy.daemon.reload_config(Daemon::RELOADED).await;
    busy.release();
    let failed = expect_result(busy.admin.wait(&busy.job).await, JobState::Failed);
    assert_eq!(failed.error.unwrap().error_type, "forbidden");
    assert_eq!(busy.runs(), "");
}

/// Replaces the configuration: the workspace, followed by `lines`.
async fn reload_with_policy(daemon: &Daemon, lines: &str) {
    let workspace = daemon.workspace();
    let text = format!("[[workspaces]]\npath = {workspace:?}\n{lines}\n");
    fs::write(daemon.sibling_path("jig.toml"), text).unwrap();
    daemon.reload_config(Daemon::RELOADED).await;
}

#[tokio::test]
async fn policy_changed_before_start_denies_job() {
    let mut busy = BusyCaller::start("", Setup::new()).await;
    let rule =
        "[[policy.rules]]\nname = \"no\"\ntool = \"run\"\npattern = \"ran\"\naction = \"deny\"\n";
    reload_with_policy(&busy.daemon, rule).await;
    busy.release();
    let failed = expect_result(busy.caller.wait(&busy.job).await, JobState::Failed);
    assert_eq!(failed.error.unwrap().error_type, "policy_denied");
    assert_eq!(busy.runs(), "");
}

#[tokio::test]
async fn approved_job_needs_no_second_approval() {
    let ask = "[policy]\ndangerous = \"ask\"\n";
    let mut busy = BusyCaller::start(ask, Setup::new()).await;

    // A policy with the same content.
    reload_with_policy(&busy.daemon, ask).await;
    busy.release();
    expect_result(busy.caller.wait(&busy.job).await, JobState::Succeeded);
    assert_eq!(busy.runs(), "ran\n");
    assert_eq!(pending_approvals_with_key(&busy.daemon, Some(&busy.admin.key)).await, []);

    busy.call.await.unwrap().unwrap();
}

#[tokio::test]
async fn job_waits_for_disk_space_to_start() {
    let setup = Setup::new().state_on_small_disk("");

    let mut busy = BusyCaller::start("", setup).await;
    let filler = busy.daemon.fill_state_disk();
    busy.release();
    busy.call.await.unwrap().unwrap();
    let blocked_log = "a job waits for disk space";
    eventually("the job cannot start", async || busy.daemon.log().contains(blocked_log)).await;

    assert_eq!(busy.caller.state(&busy.job).await, JobState::Queued);

    fs::remove_file(&filler).unwrap();
    expect_result(busy.caller.wait(&busy.job).await, JobState::Succeeded);
    assert_eq!(fs::read_to_string(busy.daemon.file("runs")).unwrap(), "ran\n");
}
