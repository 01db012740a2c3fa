//! Bounds on the time and size of a fetch, and errors of the network.

use std::{
    io::Write as _,
    time::{Duration, Instant},
};

use jig::api::v1::{FetchFormat, FetchUrlRequest};

use super::{
    ALLOWED_HOST, HttpSite, content::gzip, fetch, fetch_failing, page_request,
    start_default_daemon, start_fetching_daemon, test_network, try_fetch, url_request,
    write_response,
};
use crate::support::{eventually, wait_timeout};

const MIB: usize = 1 << 20;

fn request_with_max_bytes(bytes: usize) -> FetchUrlRequest {
    FetchUrlRequest {
        max_bytes: Some(u32::try_from(bytes).unwrap()),
        ..url_request("http://site.jig.test/")
    }
}

fn request_with_timeout(seconds: u32, path: &str) -> FetchUrlRequest {
    FetchUrlRequest {
        timeout_sec: Some(seconds),
        ..url_request(&format!("http://site.jig.test{path}"))
    }
}

#[tokio::test]
async fn fetch_truncates_content_at_max_bytes() {
    let network = test_network();
    let daemon = start_default_daemon(&network).await;
    let _site = HttpSite::start(&daemon, ALLOWED_HOST.1, 80, |_, stream| {
        write_response(stream, "200 OK", "Content-Type: text/plain\r\n", "grün".as_bytes())
    });

    for (max_bytes, content, length, truncated) in [
        (1, "g", 1, true),
        // A character is not split.
        (3, "gr", 3, true),
        (4, "grü", 4, true),
        (5, "grün", 5, false),
        (4 * MIB, "grün", 5, false),
    ] {
        let fetched = fetch(&daemon, request_with_max_bytes(max_bytes)).await;
        assert_eq!(fetched.content, content, "{max_bytes}");
        assert_eq!((fetched.content_length, fetched.truncated), (length, truncated));
    }

    for (request, field) in [
        (request_with_max_bytes(0), "max_bytes"),
        (request_with_max_bytes(4 * MIB + 1), "max_bytes"),
        (request_with_timeout(0, "/"), "timeout_sec"),
        (request_with_timeout(61, "/"), "timeout_sec"),
    ] {
        let refusal = fetch_failing(&daemon, request, "INVALID_PARAMS").await;
        assert_eq!(refusal.invalid_fields(), [field]);
    }
}

#[tokio::test]
async fn fetch_stops_reading_endless_bodies() {
    let network = test_network();
    let daemon = start_default_daemon(&network).await;
    let bomb = gzip("head -c 256M /dev/zero");
    assert!(bomb.len() < MIB / 2, "{}", bomb.len());

    let site = HttpSite::start(&daemon, ALLOWED_HOST.1, 80, move |path, stream| {
        let piece = [b'a'; 1 << 16];
        match path {
            "/huge" => write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1u64 << 40)?,
            "/close" => write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?,
            "/bomb" => {
                return write_response(stream, "200 OK", "Content-Encoding: gzip\r\n", &bomb);
            }
            _ => write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?,
        }
        loop {
            match path {
                "/chunked" => {
                    write!(stream, "10000\r\n")?;
                    stream.write_all(&piece)?;
                    write!(stream, "\r\n")?;
                }
                _ => stream.write_all(&piece)?,
            }
        }
    });

    let before = daemon.peak_bytes();
    for path in ["/huge", "/close", "/chunked", "/bomb"] {
        let fetched = fetch(&daemon, url_request(&format!("http://site.jig.test{path}"))).await;
        assert!(fetched.truncated, "{path}");
        assert_eq!(usize::try_from(fetched.content_length).unwrap(), MIB, "{path}");
        assert_eq!(fetched.content.len(), MIB, "{path}");
    }

    let grown = daemon.peak_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown}");

    // The daemon closes the connections.
    eventually("the connections are closed", async || site.ended_connection_count() == 4).await;
}

#[tokio::test]
async fn fetch_times_out_on_slow_servers() {
    let network = test_network();
    let daemon = start_default_daemon(&network).await;
    let site = HttpSite::start(&daemon, ALLOWED_HOST.1, 80, |path, stream| {
        match path {
            "/silent" => {}
            "/head" => write!(stream, "HTTP/1.1 200 OK\r\nX-More")?,
            _ => write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\na")?,
        }

        // Blocks until the daemon disconnects.
        std::io::copy(stream, &mut std::io::sink()).map(drop)
    });

    for path in ["/silent", "/head", "/body"] {
        let start = Instant::now();
        let refusal = fetch_failing(&daemon, request_with_timeout(1, path), "TIMEOUT").await;
        assert!(refusal.message.contains("timeout_sec"), "{refusal:?}");
        let elapsed = start.elapsed();
        assert!(elapsed >= Duration::from_millis(900), "{path}: {elapsed:?}");
        assert!(elapsed < wait_timeout(), "{path}: {elapsed:?}");
    }

    eventually("the connections are closed", async || site.ended_connection_count() == 3).await;
}

#[tokio::test]
async fn cancelled_fetch_closes_its_connection() {
    let network = test_network();
    let daemon = start_default_daemon(&network).await;
    let site = HttpSite::start(&daemon, ALLOWED_HOST.1, 80, |_, stream| {
        std::io::copy(stream, &mut std::io::sink()).map(drop)
    });
    let mut tools = daemon.tools();

    let call = tokio::spawn(async move { tools.fetch_url(request_with_timeout(60, "/")).await });
    eventually("the server gets the request", async || site.heads().len() == 1).await;
    assert_eq!(site.ended_connection_count(), 0);

    call.abort();
    eventually("the connection is closed", async || site.ended_connection_count() == 1).await;
}

#[tokio::test]
async fn fetch_reports_causes_of_network_errors() {
    let network = test_network();
    let daemon =
        start_fetching_daemon(&network, &["*.jig.test", "site.jig.test:81"], &[ALLOWED_HOST.1])
            .await;
    let _site = HttpSite::start(&daemon, ALLOWED_HOST.1, 80, |path, stream| match path {
        "/nothing" => Ok(()),
        _ => write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this"),
    });

    for (url, cause) in [
        ("http://site.jig.test:81/", "connection_refused"),
        ("http://missing.jig.test/", "dns_failed"),
    ] {
        let refusal = fetch_failing(&daemon, url_request(url), "FETCH_ERROR").await;
        assert_eq!(refusal.metadata["cause"], cause, "{refusal:?}");
    }

    for path in ["nothing", "half"] {
        let url = format!("http://site.jig.test/{path}");
        let refusal = fetch_failing(&daemon, url_request(&url), "FETCH_ERROR").await;
        assert!(!refusal.metadata["cause"].is_empty(), "{refusal:?}");
    }
}

#[tokio::test]
async fn fetch_converts_hostile_pages_in_bounded_time() {
    let network = test_network();
    let daemon = start_default_daemon(&network).await;
    let _site = HttpSite::start(&daemon, ALLOWED_HOST.1, 80, |path, stream| {
        let piece = match path {
            "/deep" => "<div>",
            "/lists" => "<ul><li>",
            "/tables" => "<table><tr><td>",
            "/bold" => "<b><p>",
            "/quotes" => "<blockquote>",
            _ => "<",
        };
        let body = piece.repeat(MIB / 8 / piece.len());
        write_response(stream, "200 OK", "Content-Type: text/html\r\n", body.as_bytes())
    });

    for path in ["/deep", "/lists", "/tables", "/bold", "/quotes", "/signs"] {
        for format in [FetchFormat::Markdown, FetchFormat::Text] {
            let request = FetchUrlRequest { timeout_sec: Some(60), ..page_request(path, format) };
            let fetched = fetch(&daemon, request).await;
            assert!(fetched.content.len() <= MIB, "{path}");
        }
    }
}

#[tokio::test]
async fn daemon_fetches_100_pages_concurrently() {
    let network = test_network();
    let daemon = start_default_daemon(&network).await;
    let site = HttpSite::start(&daemon, ALLOWED_HOST.1, 80, super::respond_hello);
    let calls = (0..100).map(|number| {
        let daemon = &daemon;
        async move {
            let request = url_request(&format!("http://site.jig.test/{number}"));
            try_fetch(daemon, request).await.unwrap().content
        }
    });

    let answers = join_all(calls.collect()).await;
    assert!(answers.iter().all(|content| content == "hello"));
    assert_eq!(site.connection_count(), 100);
}

/// Polls all futures concurrently and returns their results in order.
async fn join_all<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut pinned: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<T>> = pinned.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, done) in pinned.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(context)
            {
                *done = Some(value);
            }
        }

        if done.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;

    done.into_iter().flatten().collect()
}
