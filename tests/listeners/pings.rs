//! PING frames (RFC 9113, section 6.7), whose acknowledgement may wait for an answer.

use std::io::Write as _;

use super::{
    frames::{HEADERS, PING, call, connect_http2, frame, wait_for_frame},
    start_tcp_daemon,
};

const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";

fn ping(number: u32) -> Vec<u8> {
    frame(PING, 0, 0, format!("{number:08}").as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_ping_is_acknowledged_without_a_call() {
    let daemon = start_tcp_daemon(&[]).await;
    let mut stream = connect_http2(daemon.port());
    for number in 0..20 {
        stream.write_all(&ping(number)).unwrap();
        let content = wait_for_frame(&mut stream, PING);
        assert_eq!(content.as_deref(), Some(format!("{number:08}").as_bytes()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_ping_beside_calls_is_acknowledged_in_order() {
    let daemon = start_tcp_daemon(&[]).await;
    let mut stream = connect_http2(daemon.port());
    for number in 0..50 {
        let health_check = call(2 * number + 1, HEALTH_CHECK, b"");
        let pings: Vec<u8> = (0..number % 3).flat_map(|part| ping(10 * number + part)).collect();
        stream.write_all(&[pings, health_check].concat()).unwrap();
        for part in 0..number % 3 {
            let content = wait_for_frame(&mut stream, PING);
            let expected = format!("{:08}", 10 * number + part);
            assert_eq!(content.as_deref(), Some(expected.as_bytes()));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_leaves_before_the_answer() {
    let daemon = start_tcp_daemon(&[]).await;
    let mut stream = connect_http2(daemon.port());
    // The first acknowledgement says that the settings were exchanged.
    stream.write_all(&ping(0)).unwrap();
    wait_for_frame(&mut stream, PING).unwrap();

    stream.write_all(&ping(1)).unwrap();
    stream.write_all(&call(1, HEALTH_CHECK, b"")).unwrap();
    let acknowledged = wait_for_frame(&mut stream, PING).unwrap();
    assert_eq!(acknowledged, b"00000001");
    wait_for_frame(&mut stream, HEADERS).unwrap();
}
