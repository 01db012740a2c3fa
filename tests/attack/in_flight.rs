//! Descriptors that commands send over Unix sockets: so many that the kernel refuses more.

use tonic_health::pb::health_check_response::ServingStatus;

use crate::support::{Mark, Setup, argv, compile, eventually, promptly, shell};

/// Runs beside the attack: more than any pool keeps warm, so that sandboxes must be made meanwhile.
const BESIDE: usize = 24;

/// Has commands hold as many descriptors in flight as they may, which the kernel counts for all
/// processes of their user together, and others run beside them.
async fn fills_up(setup: Setup) {
    let daemon = setup.alone().start().await;
    let lost = || daemon.log().matches("slot lost").count();
    let lost_before = lost();
    let program = compile(&daemon, "in_flight");
    let mark = Mark::new();
    let attacks: Vec<_> = (0..2).map(|_| daemon.begin(mark.on(argv(&[&program])))).collect();
    let go_on = || assert!(!attacks.iter().any(|attack| attack.is_finished()));
    eventually("no more descriptors can be sent", async || {
        go_on();
        daemon.file("full").exists()
    })
    .await;
    for _ in 0..BESIDE {
        assert_eq!(daemon.output(shell("echo one")).await, "one\n");
    }
    // At a time too: then slots are made.
    let calls: Vec<_> = (0..BESIDE).map(|_| daemon.begin(shell("echo many"))).collect();
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
    mark.vanishes().await;
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
    assert_eq!(lost(), lost_before, "none was given up");
}

#[tokio::test]
async fn descriptors_in_flight_do_not_hinder_other_runs() {
    fills_up(Setup::new()).await;
}

#[tokio::test]
async fn descriptors_in_flight_do_not_hinder_the_daemon_of_the_same_user() {
    fills_up(Setup::new().user(12346)).await;
}
