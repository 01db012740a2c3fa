//! The tool `wait_job` with fleet jobs: on daemons that do not run them, for callers that may see
//! them.

use jig::api::v1::{InvokeResponse, JobState, SubmitJobRequest};
use serde_json::{Value, json};

use super::{COUNTED_WAIT, Member, TestFleet, fleet_job, plain_client::fleet_job_id};
use crate::{
    invoke::{call, invoke, json_of},
    support::with_key,
};

async fn wait_job(member: &Member, key: &str, dialect: &str, params: Value) -> InvokeResponse {
    invoke(&member.daemon, with_key(key, call(dialect, "wait_job", params))).await
}

#[tokio::test]
async fn wait_job_returns_the_result_of_another_daemon() {
    let fleet = TestFleet::start().await;
    let observer = fleet.start_observer().await;
    let worker = fleet.start_member_beside(&observer).await;
    let line = format!("{COUNTED_WAIT}; echo done");
    let id = fleet.jobs(&observer).submit("m-1", fleet_job(&line)).await.job_id;
    worker.wait_for_effects(1).await;

    let params = json!({ "job_id": id, "wait_ms": 100 });
    let pending = wait_job(&observer, &fleet.ci, "", params).await;
    assert_eq!(json_of(&pending.data.unwrap())["pending"], true);

    worker.go();
    for member in [&observer, &worker] {
        for dialect in ["", "openai"] {
            let params = json!({ "job_id": id, "wait_ms": 60_000 });
            let ended = wait_job(member, &fleet.ci, dialect, params).await;
            let data = json_of(&ended.data.unwrap());
            assert_eq!((&data["ok"], &data["pending"]), (&true.into(), &false.into()), "{data}");
            assert_eq!(data["output"]["stdout"], "done\n", "{data}");
        }
    }
    let local = fleet.jobs(&worker).submit("local", crate::jobs::command_job("exit 5")).await;
    let params = json!({ "job_id": local.job_id });
    let ended = wait_job(&worker, &fleet.ci, "", params).await;
    assert_eq!(json_of(&ended.data.unwrap())["output"]["exit_code"], 5);
}

#[tokio::test]
async fn wait_job_reports_a_lost_fleet_job() {
    let fleet = TestFleet::start().await;
    let observer = fleet.start_observer().await;
    let mut worker = fleet.start_member_beside(&observer).await;
    let mut jobs = fleet.jobs(&observer);
    let id = jobs.submit("m-1", fleet_job(COUNTED_WAIT)).await.job_id;
    worker.wait_for_effects(1).await;
    let _other = fleet.start_member_beside(&observer).await;
    worker.kill().await;

    assert_eq!(jobs.wait(&id).await.state(), JobState::Lost);
    let ended = wait_job(&observer, &fleet.ci, "", json!({ "job_id": id })).await;
    let data = json_of(&ended.data.unwrap());
    assert_eq!((&data["ok"], &data["error_type"]), (&false.into(), &"daemon_lost".into()));
}

#[tokio::test]
async fn wait_job_finds_only_fleet_jobs_visible_to_its_key_and_dialect() {
    let fleet = TestFleet::start().await;
    let elsewhere = fleet.keys.add_key("elsewhere", "admin", &["--for-workspace", "other"]);
    let narrow = fleet.keys.add_key("narrow", "invoke", &["--for-tool", "wait_job"]);
    let observer = fleet.start_observer().await;
    let _worker = fleet.start_member_beside(&observer).await;
    let mut jobs = fleet.jobs(&observer);
    let id = jobs.submit("m-1", fleet_job("true")).await.job_id;
    jobs.wait(&id).await;

    let unknown = fleet_job_id("unknown");
    for (key, id) in [(&elsewhere, &id), (&narrow, &id), (&fleet.ci, &unknown)] {
        let hidden = wait_job(&observer, key, "", json!({ "job_id": id })).await;
        assert_eq!(hidden.error.unwrap().error_type, "job_not_found");
    }

    let claude = SubmitJobRequest {
        tool: "Bash".to_owned(),
        dialect: "claude".to_owned(),
        params_json: json!({ "command": "echo done" }).to_string(),
        params: None,
        ..fleet_job("true")
    };
    let id = jobs.submit("m-2", claude).await.job_id;
    jobs.wait(&id).await;
    let refused = wait_job(&observer, &fleet.ci, "dracode", json!({ "job_id": id })).await;
    let error = refused.error.unwrap();
    assert!(error.message.contains("a job of the dialect claude: "), "{error:?}");
    let ended = wait_job(&observer, &fleet.ci, "claude", json!({ "job_id": id })).await;
    assert!(format!("{ended:?}").contains("done"), "{ended:?}");
}
