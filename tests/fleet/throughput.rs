//! Throughput of one, two and three daemons beside that of local jobs, and what the queue costs.
//! The test prints its figures; docs/operate/fleet-size.md has those of `JIG_FULL=1`.

use std::{fs, time::Duration};

use jig::api::v1::JobState;
use tokio::time::Instant;

use super::{
    Member, TestFleet,
    plain_client::{JobMessage, fleet_job_id},
};
use crate::{jobs::command_job, support::full_size};

/// Clock ticks in a second, which Linux never changes for programs.
const TICKS_PER_SEC: f64 = 100.0;

/// Time and CPU time that some jobs took.
#[derive(Debug)]
struct Cost {
    elapsed: Duration,
    daemon_cpu_sec: f64,
    server_cpu_sec: f64,
}

/// CPU time of a process, without that of its children, in seconds.
fn cpu_sec(pid: i32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks = fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap());
    ticks.sum::<f64>() / TICKS_PER_SEC
}

/// Runs jobs, and returns what they cost.
async fn measure(fleet: &TestFleet, members: &[Member], work: impl Future<Output = ()>) -> Cost {
    let daemon_cpu = || members.iter().map(|member| cpu_sec(member.daemon.pid())).sum::<f64>();
    let (daemon_before, server_before) = (daemon_cpu(), cpu_sec(fleet.server.pid()));
    let started = Instant::now();
    work.await;
    Cost {
        elapsed: started.elapsed(),
        daemon_cpu_sec: daemon_cpu() - daemon_before,
        server_cpu_sec: cpu_sec(fleet.server.pid()) - server_before,
    }
}

#[tokio::test]
async fn throughput_and_cost_of_the_queue_are_measured() {
    let count = full_size(2000, 60);
    let fleet = TestFleet::start().await;
    let mut members = vec![fleet.start_member_with(|setup| setup.exclusive()).await];

    // Local jobs, four at once as in the fleet.
    let local = measure(&fleet, &members, async {
        let submitters = (0..4).map(|part| {
            let mut jobs = fleet.jobs(&members[0]);
            async move {
                for number in 0..count / 4 {
                    let id = jobs.submit(&format!("l-{part}-{number}"), command_job("true")).await;
                    let job = jobs.wait(&id.job_id).await;
                    assert_eq!(job.state(), JobState::Succeeded);
                }
            }
        });
        futures_util::future::join_all(submitters).await;
    })
    .await;
    report("local", &local, count);

    for daemons in 1..=3 {
        if daemons > 1 {
            members.push(fleet.start_member_beside(&members[0]).await);
        }
        let name = |number: usize| format!("f-{daemons}-{number}");
        let cost = measure(&fleet, &members, async {
            for number in 0..count {
                let message = JobMessage::new(&name(number), &command_job("true"));
                fleet.client.publish(&message).await;
            }
            let ids: Vec<_> = (0..count).map(|number| fleet_job_id(&name(number))).collect();
            for record in fleet.client.wait_for_ends(&ids).await.values() {
                assert_eq!(record.job.as_ref().unwrap().state(), JobState::Succeeded);
            }
        })
        .await;
        report(&format!("fleet of {daemons}"), &cost, count);
    }
}

fn report(name: &str, cost: &Cost, count: usize) {
    let jobs = count as f64;
    let milliseconds = |seconds: f64| seconds * 1000.0 / jobs;
    eprintln!(
        "{name}: {:.0} jobs/s, {:.2} ms a job, CPU of daemons {:.2} ms, of the server {:.2} ms a job",
        jobs / cost.elapsed.as_secs_f64(),
        milliseconds(cost.elapsed.as_secs_f64()),
        milliseconds(cost.daemon_cpu_sec),
        milliseconds(cost.server_cpu_sec),
    );
}
