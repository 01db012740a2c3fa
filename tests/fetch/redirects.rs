//! Redirects: their targets are checked like requested URLs.

use std::sync::{Arc, atomic::Ordering};

use super::{
    ALLOWED_HOST, HttpSite, METADATA_ADDRESS, OTHER_HOST, PRIVATE_ADDRESS, fetch, fetch_failing,
    respond_hello, start_default_daemon, test_network, url_request, write_response,
};

fn location_field(location: &str) -> String {
    format!("Location: {location}\r\n")
}

#[tokio::test]
async fn fetch_follows_redirects() {
    let network = test_network();
    let daemon = start_default_daemon(&network).await;
    let site = HttpSite::start(&daemon, ALLOWED_HOST.1, 80, |path, stream| match path {
        "/301" => {
            write_response(stream, "301 Moved", &location_field("http://site.jig.test/302"), b"x")
        }
        "/302" => write_response(stream, "302 Found", &location_field("303"), b"x"),
        "/303" => write_response(
            stream,
            "303 See Other",
            &location_field("//site.jig.test/307#part"),
            b"x",
        ),
        "/307" => write_response(stream, "307 Temporary", &location_field("?308"), b"x"),
        "/307?308" => write_response(stream, "308 Permanent", &location_field("/end"), b"x"),
        "/300" => {
            write_response(stream, "300 Multiple Choices", &location_field("/end"), b"choose")
        }
        "/304" => write_response(stream, "304 Not Modified", &location_field("/end"), b""),
        "/without" => write_response(stream, "302 Found", "", b"nowhere"),
        _ => respond_hello(path, stream),
    });

    let fetched = fetch(&daemon, url_request("http://site.jig.test/301#top")).await;
    assert_eq!(fetched.content, "hello");
    assert_eq!(fetched.final_url, "http://site.jig.test/end");
    assert_eq!(site.connection_count(), 6);

    for (path, status, content) in
        [("300", 300, "choose"), ("304", 304, ""), ("without", 302, "nowhere")]
    {
        let fetched = fetch(&daemon, url_request(&format!("http://site.jig.test/{path}"))).await;
        assert_eq!((fetched.status_code, fetched.content.as_str()), (status, content));
    }
}

#[tokio::test]
async fn fetch_denies_redirects_to_disallowed_targets() {
    let network = test_network();
    let daemon = start_default_daemon(&network).await;
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

    let site = HttpSite::start(&daemon, ALLOWED_HOST.1, 80, move |path, stream| {
        let number: usize = path.trim_start_matches('/').parse().unwrap();
        write_response(stream, "302 Found", &location_field(locations[number]), b"")
    });
    let other_sites = ["127.0.0.1", "::1", OTHER_HOST.1, PRIVATE_ADDRESS, METADATA_ADDRESS]
        .map(|address| HttpSite::start(&daemon, address, 80, respond_hello));

    for (number, location) in locations.iter().enumerate() {
        let url = format!("http://site.jig.test/{number}");
        let refusal = fetch_failing(&daemon, url_request(&url), "EGRESS_DENIED").await;
        assert!(!refusal.message.contains("hunter2"), "{location}: {refusal:?}");
    }

    assert_eq!(site.connection_count(), locations.len());
    assert_eq!(other_sites.map(|site| site.connection_count()), [0; 5]);
}

#[tokio::test]
async fn fetch_limits_redirects() {
    let network = test_network();
    let daemon = start_default_daemon(&network).await;
    let site = HttpSite::start(&daemon, ALLOWED_HOST.1, 80, |path, stream| {
        match path.trim_start_matches('/').parse::<u32>() {
            Ok(0) => respond_hello(path, stream),
            Ok(remaining) => write_response(
                stream,
                "302 Found",
                &location_field(&format!("/{}", remaining - 1)),
                b"",
            ),
            Err(_) if path == "/nonsense" => {
                write_response(stream, "302 Found", &location_field("http://[nonsense"), b"")
            }
            Err(_) => write_response(stream, "302 Found", &location_field("/loop"), b""),
        }
    });

    let fetched = fetch(&daemon, url_request("http://site.jig.test/10")).await;
    assert_eq!(fetched.content, "hello");

    for (path, cause) in [
        ("11", "too_many_redirects"),
        ("loop", "too_many_redirects"),
        ("nonsense", "invalid_redirect"),
    ] {
        let url = format!("http://site.jig.test/{path}");
        let refusal = fetch_failing(&daemon, url_request(&url), "FETCH_ERROR").await;
        assert_eq!(refusal.metadata["cause"], cause, "{path}");
    }

    assert_eq!(Arc::clone(&site.connections).load(Ordering::SeqCst), 11 + 11 + 11 + 1);
}
