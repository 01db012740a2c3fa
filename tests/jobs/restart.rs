//! Jobs whose daemon is killed at any moment: acknowledged jobs survive, no job runs twice, and
//! running jobs are lost.

use std::{collections::BTreeMap, fs, time::Duration};

use jig::api::v1::{GetJobRequest, JobState, ListJobsRequest, SubmitJobRequest};
use serde_json::json;
use tonic::Code;

use super::{Jobs, command_job, expect_result, tool_job};
use crate::support::{
    Daemon, Mark, Refusal, Setup, count_marked_processes, eventually, full_size, shell,
    with_metadata,
};

#[tokio::test]
async fn restart_runs_queued_jobs_and_loses_running_ones() {
    let setup = Setup::new().workspace_table("[jobs]\nqueue_concurrency = 1\n");
    let daemon = setup.start().await;
    let mut jobs = Jobs::of(&daemon);

    let done_id = jobs.submit(command_job("echo done >> runs")).await;
    let done_job = jobs.wait(&done_id).await;
    let mark = Mark::new();
    let marked = mark.on(shell("echo ran >> runs; sleep 1000"));
    let params = json!({ "command": marked.command, "env": marked.env });
    let running_id = jobs.submit(tool_job("run", params)).await;
    mark.wait_for_processes(1).await;

    eventually("the job is reported as running", async || {
        jobs.get(&running_id).await.step.is_some()
    })
    .await;
    let queued_id = jobs.submit(command_job("echo waited >> runs")).await;

    let daemon = daemon.restart().await;
    mark.wait_until_gone().await;

    let mut jobs = Jobs::of(&daemon);
    let lost_job = jobs.get(&running_id).await;
    assert_eq!(lost_job.step, Some(2));

    let response = expect_result(lost_job, JobState::Lost);
    assert_eq!(response.error.unwrap().error_type, "daemon_lost");
    expect_result(jobs.wait(&queued_id).await, JobState::Succeeded);
    assert_eq!(jobs.get(&done_id).await, done_job);

    let runs = fs::read_to_string(daemon.file("runs")).unwrap();
    assert_eq!(runs, "done\nran\nwaited\n");

    let daemon = daemon.restart().await;
    let mut jobs = Jobs::of(&daemon);
    assert_eq!(jobs.get(&running_id).await.state(), JobState::Lost);
}

#[tokio::test]
async fn job_with_damaged_params_file_is_lost() {
    let setup = Setup::new().workspace_table("[jobs]\nqueue_concurrency = 1\n");
    let daemon = setup.start().await;
    let mut jobs = Jobs::of(&daemon);

    let first = jobs.submit(command_job("sleep 1000")).await;
    eventually("the first job runs", async || jobs.get(&first).await.step.is_some()).await;

    let list = || tool_job("list_files", json!({}));
    let [emptied, cut, removed] = [
        jobs.submit(list()).await,
        jobs.submit(command_job("touch ran")).await,
        jobs.submit(list()).await,
    ];
    let intact = jobs.submit(list()).await;
    let directory = daemon.state_dir().join("jobs");
    fs::write(directory.join(format!("{emptied}.json")), "").unwrap();

    let file = directory.join(format!("{cut}.json"));
    let params = fs::read_to_string(&file).unwrap();
    fs::write(&file, &params[..params.len() - 1]).unwrap();
    fs::remove_file(directory.join(format!("{removed}.json"))).unwrap();

    // A foreign directory does no harm.
    fs::create_dir(directory.join("somebodys")).unwrap();
    let daemon = daemon.restart().await;
    let mut jobs = Jobs::of(&daemon);
    for id in [&emptied, &cut, &removed] {
        let lost_job = jobs.wait(id).await;
        assert_eq!(lost_job.step, None);
        let response = expect_result(lost_job, JobState::Lost);
        assert_eq!(response.error.unwrap().error_type, "daemon_lost");
    }

    expect_result(jobs.wait(&intact).await, JobState::Succeeded);
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn job_results_are_limited_by_max_entries() {
    let setup = Setup::new().workspace_table("[jobs]\nmax_entries = 2\n");
    let daemon = setup.start().await;
    let mut jobs = Jobs::of(&daemon);

    let mut ids = Vec::new();
    for _ in 0..5 {
        let id = jobs.submit(tool_job("list_files", json!({}))).await;
        expect_result(jobs.wait(&id).await, JobState::Succeeded);
        ids.push(id);
    }

    let daemon = daemon.restart().await;
    eventually("only the newest jobs remain", async || {
        let mut listed = all_job_ids(&daemon).await;
        listed.reverse();
        listed == ids[3..]
    })
    .await;

    let mut jobs = Jobs::of(&daemon);
    let request = GetJobRequest { job_id: ids[0].clone() };
    let refusal = Refusal::from_status(&jobs.0.get_job(request).await.unwrap_err());
    assert_eq!(refusal.reason, "JOB_NOT_FOUND");
    expect_result(jobs.get(&ids[4]).await, JobState::Succeeded);
}

/// A command that appends its number to `runs`. Every tenth takes 0.2 s.
fn counted_job(number: usize, mark: &Mark) -> SubmitJobRequest {
    let rest = if number.is_multiple_of(10) { "sleep 0.2" } else { "true" };
    let marked = mark.on(shell(&format!("echo {number} >> runs; {rest}")));
    let params = json!({ "command": marked.command, "env": marked.env });
    SubmitJobRequest {
        queue: Some(format!("q{}", number % 3)),
        priority: Some(i32::try_from(number % 7).unwrap() - 3),
        ..tool_job("run", params)
    }
}

/// Submits jobs that are not acknowledged yet, until the daemon dies. A repeated call may find the
/// job that an earlier, unanswered call has created.
async fn submit_until_daemon_dies(
    daemon: &Daemon,
    acknowledged: &mut BTreeMap<usize, String>,
    until: usize,
    mark: &Mark,
) {
    let mut jobs = Jobs::of(daemon);
    for number in 0..until {
        if acknowledged.contains_key(&number) {
            continue;
        }

        let id = format!("job-{number}");
        let request = with_metadata("jig-request-id", &id, counted_job(number, mark));
        match jobs.0.submit_job(request).await {
            Ok(response) => {
                let job = response.into_inner().job.unwrap();
                acknowledged.insert(number, job.job_id);
            }
            Err(status) => {
                assert_eq!(status.code(), Code::Unavailable, "{status}");
                break;
            }
        }
    }
}

#[tokio::test]
async fn killed_daemon_loses_no_job_and_repeats_none() {
    let deaths = full_size(200, 12);
    let job_count = full_size(1000, 150);
    let setup = Setup::new().workspace_table("[jobs]\nqueue_concurrency = 4\n");
    let mut daemon = setup.exclusive().start().await;
    let mark = Mark::new();
    let mut acknowledged = BTreeMap::new();
    for death in 0..deaths {
        let until = job_count * (death + 1) / deaths;
        let lifetime = Duration::from_micros(1_000 + (death as u64 * 7_919) % 150_000);
        let submitting = submit_until_daemon_dies(&daemon, &mut acknowledged, until, &mark);

        // Jobs may still run when the daemon dies.
        let _finished = tokio::time::timeout(lifetime, submitting).await;
        daemon = daemon.restart().await;
        let listed = all_job_ids(&daemon).await;
        let acknowledged_ids = acknowledged.values();
        let missing: Vec<_> = acknowledged_ids.filter(|id| !listed.contains(id)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    submit_until_daemon_dies(&daemon, &mut acknowledged, job_count, &mark).await;
    assert_eq!(acknowledged.len(), job_count);

    let mut jobs = Jobs::of(&daemon);
    let mut states: BTreeMap<usize, JobState> = BTreeMap::new();
    for (number, id) in &acknowledged {
        states.insert(*number, jobs.wait(id).await.state());
    }

    let listed = all_job_ids(&daemon).await.len();
    assert_eq!(listed, job_count, "there is one job for each request id");

    let runs = fs::read_to_string(daemon.file("runs")).unwrap_or_default();
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    for line in runs.lines() {
        *counts.entry(line.parse().unwrap()).or_default() += 1;
    }
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");

    for (number, state) in &states {
        match state {
            JobState::Succeeded => assert!(counts.contains_key(number), "{number}"),
            // A lost job may have run its command or not.
            JobState::Lost => {}
            state => panic!("job {number} is {state:?}"),
        }
    }

    let lost = states.values().filter(|state| **state == JobState::Lost).count();

    // Three queues with a concurrency of four.
    assert!(lost <= deaths * 12, "{lost} of {job_count} jobs are lost");

    eventually("all processes have ended", async || count_marked_processes(&mark) == 0).await;
    eprintln!("{deaths} deaths, {job_count} jobs, {lost} lost");
}

async fn all_job_ids(daemon: &Daemon) -> Vec<String> {
    let mut jobs = Jobs::of(daemon);
    let (mut ids, mut page_token) = (Vec::new(), String::new());
    loop {
        let request =
            ListJobsRequest { page_size: Some(1000), page_token, ..ListJobsRequest::default() };
        let page = jobs.0.list_jobs(request).await.unwrap().into_inner();
        ids.extend(page.jobs.into_iter().map(|job| job.job_id));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return ids;
        }
    }
}
