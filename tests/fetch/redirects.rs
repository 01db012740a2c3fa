//! Where servers redirect to: looked at as though it had been asked for.

use std::sync::{Arc, atomic::Ordering};

use super::{
    ALLOWED, METADATA, OTHER, PRIVATE, Site, answer, fetch, hello, refuses, url, usual, world,
};

fn to(location: &str) -> String {
    format!("Location: {location}\r\n")
}

#[tokio::test]
async fn redirects_are_followed_to_where_they_end() {
    let world = world();
    let daemon = usual(&world).await;
    let site = Site::at(&daemon, ALLOWED.1, 80, |path, stream| match path {
        "/301" => answer(stream, "301 Moved", &to("http://site.jig.test/302"), b"x"),
        "/302" => answer(stream, "302 Found", &to("303"), b"x"),
        "/303" => answer(stream, "303 See Other", &to("//site.jig.test/307#part"), b"x"),
        "/307" => answer(stream, "307 Temporary", &to("?308"), b"x"),
        "/307?308" => answer(stream, "308 Permanent", &to("/end"), b"x"),
        "/300" => answer(stream, "300 Multiple Choices", &to("/end"), b"choose"),
        "/304" => answer(stream, "304 Not Modified", &to("/end"), b""),
        "/without" => answer(stream, "302 Found", "", b"nowhere"),
        _ => hello(path, stream),
    });
    let fetched = fetch(&daemon, url("http://site.jig.test/301#top")).await;
    assert_eq!(fetched.content, "hello");
    assert_eq!(fetched.final_url, "http://site.jig.test/end");
    assert_eq!(site.connections(), 6);
    for (path, status, content) in
        [("300", 300, "choose"), ("304", 304, ""), ("without", 302, "nowhere")]
    {
        let fetched = fetch(&daemon, url(&format!("http://site.jig.test/{path}"))).await;
        assert_eq!((fetched.status_code, fetched.content.as_str()), (status, content));
    }
}

#[tokio::test]
async fn redirects_lead_nowhere_that_is_not_allowed() {
    let world = world();
    let daemon = usual(&world).await;
    let locations = [
        "http://other.jig.test/",
        "//other.jig.test/",
        "http://203.0.113.11/",
        "http://127.0.0.1/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://169.254.169.254/latest/meta-data/",
        "http://10.1.2.3/",
        "http://site.jig.test:22/",
        "http://localhost/",
        "http://site.jig.test@other.jig.test/",
        "http://user:hunter2@site.jig.test/",
        "file:///etc/passwd",
        "ftp://site.jig.test/",
        "gopher://site.jig.test/_x",
        "data:text/plain,x",
        "javascript:x",
    ];
    let site = Site::at(&daemon, ALLOWED.1, 80, move |path, stream| {
        let number: usize = path.trim_start_matches('/').parse().unwrap();
        answer(stream, "302 Found", &to(locations[number]), b"")
    });
    let others = ["127.0.0.1", "::1", OTHER.1, PRIVATE, METADATA]
        .map(|address| Site::at(&daemon, address, 80, hello));
    for (number, location) in locations.iter().enumerate() {
        let there = format!("http://site.jig.test/{number}");
        let refusal = refuses(&daemon, url(&there), "EGRESS_DENIED").await;
        assert!(!refusal.message.contains("hunter2"), "{location}: {refusal:?}");
    }
    assert_eq!(site.connections(), locations.len());
    assert_eq!(others.map(|site| site.connections()), [0; 5]);
}

#[tokio::test]
async fn redirects_without_end_have_one() {
    let world = world();
    let daemon = usual(&world).await;
    let site = Site::at(&daemon, ALLOWED.1, 80, |path, stream| {
        match path.trim_start_matches('/').parse::<u32>() {
            Ok(0) => hello(path, stream),
            Ok(left) => answer(stream, "302 Found", &to(&format!("/{}", left - 1)), b""),
            Err(_) if path == "/nonsense" => {
                answer(stream, "302 Found", &to("http://[nonsense"), b"")
            }
            Err(_) => answer(stream, "302 Found", &to("/loop"), b""),
        }
    });
    let fetched = fetch(&daemon, url("http://site.jig.test/10")).await;
    assert_eq!(fetched.content, "hello");
    for (path, cause) in [
        ("11", "too many redirects"),
        ("loop", "too many redirects"),
        ("nonsense", "a redirect to what is no URL"),
    ] {
        let there = format!("http://site.jig.test/{path}");
        let refusal = refuses(&daemon, url(&there), "FETCH_ERROR").await;
        assert_eq!(refusal.metadata["cause"], cause, "{path}");
    }
    assert_eq!(Arc::clone(&site.connections).load(Ordering::SeqCst), 11 + 11 + 11 + 1);
}
