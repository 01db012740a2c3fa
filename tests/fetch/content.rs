//! How `fetch_url` converts, decodes and records what servers send, and TLS.

use std::{io::Write as _, path::Path, process::Command};

use jig::api::v1::FetchFormat;
use serde_json::json;
use tempfile::TempDir;

use super::{
    ALLOWED_HOST, HttpSite, fetch, fetch_failing, page_request, start_default_daemon,
    start_fetching_daemon, test_network, url_request, write_response,
};
use crate::support::{TestNetwork, TlsServer, eventually};

/// The output of a shell script, compressed by gzip.
pub(super) fn gzip(script: &str) -> Vec<u8> {
    let command = format!("{script} | gzip -c");
    let output = Command::new("sh").args(["-c", &command]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

const HTML_PAGE: &str = "<!doctype html><html><head><title>T</title><style>p{}</style><script>x</script></head>\
    <body><h1>Head &amp; more</h1><p>Some <b>bold</b> <a href=\"/next?a=1&amp;b=2\">link</a>.</p>\
    <ul><li>one<li>two</ul><pre><code>a &lt; b</code></pre></body></html>";

#[tokio::test]
async fn fetch_converts_pages_to_the_requested_format() {
    let network = test_network();
    let daemon = start_default_daemon(&network).await;
    let _site = HttpSite::start(&daemon, ALLOWED_HOST.1, 80, |path, stream| {
        let kind = match path {
            "/xhtml" => "application/xhtml+xml",
            "/plain" => "text/plain",
            _ => "text/html; charset=utf-8",
        };
        let fields = format!("Content-Type: {kind}\r\n");
        write_response(stream, "200 OK", &fields, HTML_PAGE.as_bytes())
    });

    let markdown = "# Head & more\n\nSome **bold** [link](http://site.jig.test/next?a=1&b=2).\n\n\
        *   one\n*   two\n\n```\na < b\n```";
    let text = "Head & more\nSome bold link.\none\ntwo\na < b";
    for (path, format, content) in [
        ("/", FetchFormat::Raw, HTML_PAGE),
        ("/", FetchFormat::Unspecified, HTML_PAGE),
        ("/", FetchFormat::Markdown, markdown),
        ("/", FetchFormat::Text, text),
        ("/xhtml", FetchFormat::Markdown, markdown),
        ("/plain", FetchFormat::Markdown, HTML_PAGE),
        ("/plain", FetchFormat::Text, HTML_PAGE),
    ] {
        let fetched = fetch(&daemon, page_request(path, format)).await;
        assert_eq!(fetched.content, content, "{path} {format:?}");
        assert_eq!(usize::try_from(fetched.content_length).unwrap(), HTML_PAGE.len());
        assert_eq!((fetched.status_code, fetched.truncated), (200, false));
    }

    let fetched = fetch(&daemon, url_request("http://site.jig.test")).await;
    assert_eq!(fetched.content_type, "text/html; charset=utf-8");
    assert_eq!(fetched.final_url, "http://site.jig.test/");
}

#[tokio::test]
async fn fetch_returns_responses_of_any_status() {
    let network = test_network();
    let daemon = start_default_daemon(&network).await;
    let _site = HttpSite::start(&daemon, ALLOWED_HOST.1, 80, |path, stream| {
        let status = path.trim_start_matches('/');
        let fields = "Content-Type: text/plain\r\n";
        write_response(stream, &format!("{status} Some Words"), fields, b"text")
    });

    for status in [201, 400, 401, 403, 404, 410, 418, 429, 500, 503, 599] {
        let fetched = fetch(&daemon, url_request(&format!("http://site.jig.test/{status}"))).await;
        assert_eq!((fetched.status_code, fetched.content.as_str()), (status, "text"));
    }

    let path = daemon.state_dir().join("sessions/default/events.jsonl");
    let records = std::fs::read_to_string(path).unwrap();
    assert!(records.contains("\"status_code\":404"), "{records}");
}

#[tokio::test]
async fn fetch_decodes_text_and_rejects_binary_content() {
    let network = test_network();
    let daemon = start_default_daemon(&network).await;
    let _site = HttpSite::start(&daemon, ALLOWED_HOST.1, 80, |path, stream| {
        let (kind, body): (&str, &[u8]) = match path {
            "/latin1" => ("text/plain; charset=iso-8859-1", b"gr\xfcn"),
            "/meta" => ("text/html", b"<meta charset=\"latin1\"><p>gr\xfcn"),
            "/broken" => ("text/plain", b"gr\xfcn"),
            "/utf16" => ("text/plain", b"\xff\xfeg\0r\0\xfc\0n\0"),
            "/json" => ("application/json", "{\"a\":\"grün\"}".as_bytes()),
            "/octets" => ("application/octet-stream", b"plain"),
            "/png" => ("image/png", b"\x89PNG\r\n\x1a\n\0\0\xff"),
            "/html" => ("", b"<p>x"),
            _ => ("", b""),
        };
        let fields = match kind {
            "" => String::new(),
            kind => format!("Content-Type: {kind}\r\n"),
        };
        write_response(stream, "200 OK", &fields, body)
    });

    for (path, content) in [
        ("/latin1", "grün"),
        ("/meta", "grün"),
        ("/broken", "gr\u{fffd}n"),
        ("/utf16", "grün"),
        ("/json", "{\"a\":\"grün\"}"),
        ("/octets", "plain"),
        // Without a content type the body is not converted.
        ("/html", "<p>x"),
        ("/empty", ""),
    ] {
        let fetched = fetch(&daemon, page_request(path, FetchFormat::Text)).await;
        assert_eq!(fetched.content, content, "{path}");
    }

    let refusal =
        fetch_failing(&daemon, page_request("/png", FetchFormat::Raw), "FETCH_ERROR").await;
    assert_eq!(refusal.metadata["content_type"], "image/png");
    assert!(refusal.message.contains("image/png"), "{refusal:?}");
}

#[tokio::test]
async fn fetch_decompresses_gzip() {
    let network = test_network();
    let daemon = start_default_daemon(&network).await;
    let body = gzip("printf 'compressed text'");
    let broken = body[..body.len() - 9].to_vec();
    let site = HttpSite::start(&daemon, ALLOWED_HOST.1, 80, move |path, stream| {
        let body = if path == "/broken" { &broken } else { &body };
        let fields = "Content-Type: text/plain\r\nContent-Encoding: gzip\r\n";
        write_response(stream, "200 OK", fields, body)
    });

    let fetched = fetch(&daemon, url_request("http://site.jig.test/")).await;
    assert_eq!(fetched.content, "compressed text");
    assert_eq!(fetched.content_length, 15);

    let [head] = site.heads().try_into().unwrap();
    assert!(head.to_lowercase().contains("accept-encoding: gzip\r\n"), "{head}");

    fetch_failing(&daemon, url_request("http://site.jig.test/broken"), "FETCH_ERROR").await;
}

#[tokio::test]
async fn session_log_records_fetches_without_content() {
    let network = test_network();
    let daemon = start_default_daemon(&network).await;
    let _site = HttpSite::start(&daemon, ALLOWED_HOST.1, 80, super::respond_hello);
    fetch(&daemon, url_request("http://site.jig.test/x")).await;

    let path = daemon.state_dir().join("sessions/default/events.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let records = text.lines().map(serde_json::from_str::<serde_json::Value>);
    let records: Vec<_> = records.map(Result::unwrap).collect();
    let [start, end] = records.as_slice() else {
        panic!("{records:?}");
    };

    assert_eq!(start["params"], json!({ "url": "http://site.jig.test/x" }));
    assert_eq!((&end["status_code"], &end["content_length"]), (&json!(200), &json!(5)));
    assert!(!text.contains("hello"), "{text}");
}

/// Makes `ca.pem`, the certificate of an authority, and `certificate.pem`, which that authority
/// signs for site.jig.test.
fn make_certificates(directory: &Path) {
    let script = "
        openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=authority
        openssl req -new -newkey rsa:2048 -nodes -keyout key.pem -out request.pem -subj /CN=site.jig.test
        printf 'subjectAltName=DNS:site.jig.test\\nbasicConstraints=CA:FALSE\\n' > fields
        openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile fields -out certificate.pem
    ";
    let output =
        Command::new("sh").args(["-e", "-c", script]).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test]
async fn fetch_verifies_tls_certificates() {
    let network = TestNetwork::with_hosts(&[ALLOWED_HOST, ("unlisted.jig.test", ALLOWED_HOST.1)]);
    let directory = TempDir::with_prefix("jig-test-tls-").unwrap();
    make_certificates(directory.path());
    std::fs::write(directory.path().join("page"), "over TLS").unwrap();

    // The daemon's host trusts no other authority.
    let authority = directory.path().join("ca.pem");
    let hosts = [ALLOWED_HOST.0, "unlisted.jig.test"];
    let setup = network.setup().workspace_table(&format!(
        "[fetch]\nhosts = {hosts:?}\nallow_addresses = [{:?}]",
        ALLOWED_HOST.1
    ));
    let script = format!(
        "mount --bind {} /etc/ssl/certs/ca-certificates.crt && exec \"$0\" \"$@\"",
        authority.display()
    );

    let daemon = setup.and_wrapped_by(["sh", "-c", &script]).start().await;
    let _server = TlsServer::start(&daemon, directory.path(), ALLOWED_HOST.1);
    eventually("the server listens", async || {
        let fetched = super::try_fetch(&daemon, url_request("https://site.jig.test/page")).await;
        match fetched {
            Ok(fetched) => fetched.content == "over TLS",
            Err(refusal) => {
                assert_eq!(refusal.metadata["cause"], "connection_refused");
                false
            }
        }
    })
    .await;

    let refusal =
        fetch_failing(&daemon, url_request("https://unlisted.jig.test/page"), "FETCH_ERROR").await;
    assert!(refusal.message.contains("certificate"), "{refusal:?}");
}

#[tokio::test]
async fn fetch_reports_servers_that_do_not_speak_http() {
    let network = test_network();
    let daemon =
        start_fetching_daemon(&network, &["site.jig.test:443", "site.jig.test"], &[ALLOWED_HOST.1])
            .await;
    let _sites = [80, 443].map(|port| {
        HttpSite::start(&daemon, ALLOWED_HOST.1, port, |_, stream| {
            stream.write_all(b"220 mail.jig.test ESMTP\r\n")
        })
    });
    for url in ["http://site.jig.test/", "https://site.jig.test/"] {
        fetch_failing(&daemon, url_request(url), "FETCH_ERROR").await;
    }
}
