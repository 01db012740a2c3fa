//! Commands that send so many descriptors over Unix sockets that the kernel refuses more.

use tonic_health::pb::health_check_response::ServingStatus;

use crate::support::{Mark, Setup, argv, compile_in_workspace, eventually, promptly, shell};

/// Runs beside the attack: more than there are idle sandboxes, so that the daemon makes new ones.
const CONCURRENT_RUNS: usize = 24;

/// Two commands hold as many descriptors in flight as the kernel allows. The kernel counts those of
/// all processes of a user, and other commands of the same user run beside.
async fn check_descriptors_in_flight(setup: Setup) {
    let daemon = setup.exclusive().start().await;
    let lost_slots = || daemon.log().matches("slot lost").count();
    let lost_slots_before = lost_slots();

    let program = compile_in_workspace(&daemon, "in_flight");
    let mark = Mark::new();
    let attacks: Vec<_> = (0..2).map(|_| daemon.spawn_run(mark.on(argv(&[&program])))).collect();
    let assert_running = || assert!(!attacks.iter().any(|attack| attack.is_finished()));
    eventually("the kernel refuses more descriptors", async || {
        assert_running();
        daemon.file("full").exists()
    })
    .await;

    for _ in 0..CONCURRENT_RUNS {
        assert_eq!(daemon.output(shell("echo one")).await, "one\n");
    }

    // Concurrent runs make the daemon build slots.
    let calls: Vec<_> =
        (0..CONCURRENT_RUNS).map(|_| daemon.spawn_run(shell("echo many"))).collect();
    for call in calls {
        let response = promptly("the run ends", call).await.unwrap().unwrap();
        assert_eq!(response.stdout, "many\n", "{response:?}");
    }

    // The daemon sends a request that is too large for one message through an additional
    // descriptor.
    let long = "x".repeat(60_000);
    let words = ["sh", "-c", "echo $#", "sh", &long, &long, &long];
    assert_eq!(daemon.output(argv(&words)).await, "3\n");

    assert_running();
    assert_eq!(daemon.health().await, ServingStatus::Serving);

    for attack in attacks {
        attack.abort();
    }
    mark.wait_until_gone().await;
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");

    assert_eq!(lost_slots(), lost_slots_before, "no slot is lost");
}

#[tokio::test]
async fn descriptors_in_flight_do_not_block_other_runs() {
    check_descriptors_in_flight(Setup::new()).await;
}

#[tokio::test]
async fn descriptors_in_flight_do_not_block_an_unprivileged_daemon() {
    check_descriptors_in_flight(Setup::new().user(12346)).await;
}
