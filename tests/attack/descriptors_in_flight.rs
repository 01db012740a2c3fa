//! Descriptors that commands send over Unix sockets: so many that the kernel refuses more.

use tonic_health::pb::health_check_response::ServingStatus;

use crate::support::{Mark, Setup, argv, compile_in_workspace, eventually, promptly, shell};

/// Runs beside the attack: more than any pool keeps warm, so that sandboxes must be made meanwhile.
const CONCURRENT_RUNS: usize = 24;

/// Has commands hold as many descriptors in flight as they may, which the kernel counts for all
/// processes of their user together, and others run beside them.
async fn check_descriptors_in_flight(setup: Setup) {
    let daemon = setup.exclusive().start().await;
    let lost = || daemon.log().matches("slot lost").count();
    let lost_before = lost();
    let program = compile_in_workspace(&daemon, "in_flight");
    let mark = Mark::new();
    let attacks: Vec<_> = (0..2).map(|_| daemon.spawn_run(mark.on(argv(&[&program])))).collect();
    let go_on = || assert!(!attacks.iter().any(|attack| attack.is_finished()));
    eventually("no more descriptors can be sent", async || {
        go_on();
        daemon.file("full").exists()
    })
    .await;

    for _ in 0..CONCURRENT_RUNS {
        assert_eq!(daemon.output(shell("echo one")).await, "one\n");
    }

    // At a time too: then slots are made.
    let calls: Vec<_> =
        (0..CONCURRENT_RUNS).map(|_| daemon.spawn_run(shell("echo many"))).collect();
    for call in calls {
        let response = promptly("a run ends", call).await.unwrap().unwrap();
        assert_eq!(response.stdout, "many\n", "{response:?}");
    }

    // A request that is too large for one message comes as one descriptor more.
    let long = "x".repeat(60_000);
    let words = ["sh", "-c", "echo $#", "sh", &long, &long, &long];
    assert_eq!(daemon.output(argv(&words)).await, "3\n");

    go_on();
    assert_eq!(daemon.health().await, ServingStatus::Serving);

    for attack in attacks {
        attack.abort();
    }
    mark.wait_until_gone().await;
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
    assert_eq!(lost(), lost_before, "none was given up");
}

#[tokio::test]
async fn descriptors_in_flight_do_not_block_other_runs() {
    check_descriptors_in_flight(Setup::new()).await;
}

#[tokio::test]
async fn descriptors_in_flight_do_not_block_an_unprivileged_daemon() {
    check_descriptors_in_flight(Setup::new().user(12346)).await;
}
