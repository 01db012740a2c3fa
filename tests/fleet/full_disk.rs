//! A server whose disk is full: submissions fail with an error, and no job is lost.

use jig::api::v1::JobState;
use serde_json::json;

use super::{
    TestFleet, fleet_job,
    nats_server::NatsServer,
    plain_client::{JobMessage, MAX_FLEET_TIME, fleet_job_id},
};
use crate::{jobs::tool_job, support::eventually_within};

#[tokio::test]
async fn full_disk_of_the_server_loses_no_job() {
    let mut fleet = TestFleet::with_server(NatsServer::start_on_small_disk().await).await;
    let member = fleet.start_member().await;

    // Jobs in progress, with results of their own.
    let mut ids = Vec::new();
    for number in 0..4 {
        let name = format!("before-{number}");
        let command = "echo run >> effects; until [ -e go ]; do sleep 0.05; done; seq 20000";
        let params = json!({ "command": command, "max_output_bytes": 200_000 });
        fleet.client.publish(&JobMessage::new(&name, &tool_job("run", params))).await;
        ids.push(fleet_job_id(&name));
    }
    member.wait_for_effects(4).await;

    fleet.server.fill_disk();
    let mut jobs = fleet.jobs(&member);
    let mut number = 0;
    let mut refusal = None;
    eventually_within(MAX_FLEET_TIME, "a submission is rejected", async || {
        // Small jobs may still have room.
        number += 1;
        let request = fleet_job(&format!("echo run >> effects # {}", "x".repeat(32 << 10)));
        match jobs.try_submit(&format!("full-{number}"), request).await {
            Ok(job) => ids.push(job.job_id),
            Err(error) => refusal = Some(error),
        }
        refusal.is_some()
    })
    .await;
    let refusal = refusal.unwrap();
    assert_eq!(refusal.reason, "FLEET_UNAVAILABLE", "{refusal:?}");

    // The jobs end, and their results wait for the disk. After an error, the server writes to a
    // stream again only when it has been restarted.
    member.go();
    fleet.server.free_disk();
    fleet.restart_server(&[&member]).await;

    // The rejected submission succeeds when it is repeated, and creates one job.
    eventually_within(MAX_FLEET_TIME, "the submission is repeated", async || {
        let request = fleet_job(&format!("echo run >> effects # {}", "x".repeat(32 << 10)));
        let repeated = jobs.try_submit(&format!("full-{number}"), request).await;
        if let Ok(job) = &repeated {
            ids.push(job.job_id.clone());
        }
        repeated.is_ok()
    })
    .await;

    for (id, record) in fleet.client.wait_for_ends(&ids).await {
        assert_eq!(record.job.unwrap().state(), JobState::Succeeded, "{id}");
    }
    assert_eq!(member.lines("effects").len(), ids.len());
}
