//! Conditions and ranges of `/v1/files/PATH`.

use std::{
    fs::{self, File, FileTimes},
    time::{Duration, SystemTime},
};

use super::{rest, rest_error, start_runtime};
use crate::support::{CurlResponse, Daemon};

const PATH: &str = "/v1/files/f";

/// The response to a request with headers.
fn with_headers(daemon: &Daemon, arguments: &[&str], headers: &[&str]) -> CurlResponse {
    let headers = headers.iter().flat_map(|header| ["-H", *header]);
    rest(daemon, &arguments.iter().copied().chain(headers).collect::<Vec<_>>(), PATH)
}

fn set_modified(daemon: &Daemon, time: SystemTime) {
    let file = File::options().write(true).open(daemon.file("f")).unwrap();
    file.set_times(FileTimes::new().set_modified(time)).unwrap();
}

#[tokio::test]
async fn range_of_a_file_is_read() {
    let daemon = start_runtime().await;
    fs::write(daemon.file("f"), "0123456789").unwrap();
    for (range, expected, content_range) in [
        ("bytes=2-4", "234", "bytes 2-4/10"),
        ("bytes=0-0", "0", "bytes 0-0/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=7-99", "789", "bytes 7-9/10"),
        ("bytes=-3", "789", "bytes 7-9/10"),
        ("bytes=-99", "0123456789", "bytes 0-9/10"),
    ] {
        let header = format!("range: {range}");
        let response = with_headers(&daemon, &[], &[&header]);
        assert_eq!((response.status, &*response.body), (206, expected), "{range}");
        let head = with_headers(&daemon, &["--head"], &[&header]);
        assert_eq!((head.status, &*head.body), (206, ""), "{range}");
        for response in [response, head] {
            assert_eq!(response.headers["content-range"], content_range);
            assert_eq!(response.headers["content-length"], expected.len().to_string());
            assert_eq!(response.headers["accept-ranges"], "bytes");
        }
    }

    for range in ["bytes=10-", "bytes=99-100", "bytes=-0"] {
        let header = format!("range: {range}");
        let response = with_headers(&daemon, &[], &[&header]);
        assert_eq!(
            (response.status, response.json()["code"].as_str()),
            (416, Some("OUT_OF_RANGE"))
        );
        assert_eq!(response.headers["content-range"], "bytes */10", "{range}");
    }
    for range in ["bytes=0-1,4-5", "bytes=4-2", "rows=1-2"] {
        let response = with_headers(&daemon, &[], &[&format!("range: {range}")]);
        assert_eq!((response.status, &*response.body), (200, "0123456789"), "{range}");
    }

    fs::write(daemon.file("f"), "").unwrap();
    for range in ["bytes=0-", "bytes=-5"] {
        let response = with_headers(&daemon, &[], &[&format!("range: {range}")]);
        assert_eq!((response.status, &*response.headers["content-length"]), (200, "0"), "{range}");
    }
}

#[tokio::test]
async fn download_continues_only_in_the_same_file() {
    let daemon = start_runtime().await;
    fs::write(daemon.file("f"), "0123456789").unwrap();
    let first = rest(&daemon, &[], PATH);
    let same = format!("if-range: {}", first.headers["etag"]);
    let continued = with_headers(&daemon, &[], &["range: bytes=4-", &same]);
    assert_eq!((continued.status, &*continued.body), (206, "456789"));
    assert_eq!(continued.headers["etag"], first.headers["etag"]);

    // A date does not identify the bytes: a command can set it.
    let date = format!("if-range: {}", first.headers["last-modified"]);
    fs::write(daemon.file("f"), "another one").unwrap();
    for condition in [&same, &date] {
        let response = with_headers(&daemon, &[], &["range: bytes=4-", condition]);
        assert_eq!((response.status, &*response.body), (200, "another one"), "{condition}");
        assert_ne!(response.headers["etag"], first.headers["etag"]);
    }
}

#[tokio::test]
async fn file_that_the_client_has_is_not_sent_again() {
    let daemon = start_runtime().await;
    fs::write(daemon.file("f"), "old").unwrap();
    set_modified(&daemon, SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000));
    let first = rest(&daemon, &[], PATH);
    let (etag, modified) = (&*first.headers["etag"], &*first.headers["last-modified"]);
    assert_eq!(modified, "Sun, 09 Sep 2001 01:46:40 GMT");

    let same = [format!("if-none-match: {etag}"), format!("if-modified-since: {modified}")];
    for condition in &same {
        for arguments in [&[][..], &["--head"]] {
            let response = with_headers(&daemon, arguments, &[condition]);
            assert_eq!((response.status, &*response.body), (304, ""), "{condition}");
            assert_eq!(response.headers["etag"], etag);
            assert_eq!(response.headers["last-modified"], modified);
        }
    }
    let other = [
        "if-match: \"other\"".to_owned(),
        "if-unmodified-since: Sun, 09 Sep 2001 01:46:39 GMT".to_owned(),
    ];
    for condition in &other {
        let response = with_headers(&daemon, &[], &[condition]);
        let code = response.json()["code"].as_str().map(str::to_owned);
        assert_eq!((response.status, code.as_deref()), (412, Some("FAILED_PRECONDITION")));
    }

    fs::write(daemon.file("f"), "new").unwrap();
    for condition in &same {
        let response = with_headers(&daemon, &[], &[condition]);
        assert_eq!((response.status, &*response.body), (200, "new"), "{condition}");
    }
}

#[tokio::test]
async fn dates_that_http_cannot_hold_are_left_out() {
    let daemon = start_runtime().await;
    fs::write(daemon.file("f"), "text").unwrap();
    for time in [
        SystemTime::UNIX_EPOCH - Duration::from_secs(1),
        SystemTime::now() + Duration::from_secs(86_400),
    ] {
        set_modified(&daemon, time);
        let response = rest(&daemon, &[], PATH);
        assert_eq!((response.status, &*response.body), (200, "text"));
        assert_eq!(response.headers.get("last-modified"), None, "{time:?}");
    }
}

#[tokio::test]
async fn put_can_require_that_the_file_is_new() {
    let daemon = start_runtime().await;
    let put = ["-X", "PUT", "--data-binary", "first"];
    let create = ["if-none-match: *"];
    assert_eq!(with_headers(&daemon, &put, &create).status, 204);
    let put = ["-X", "PUT", "--data-binary", "second"];
    let response = with_headers(&daemon, &put, &create);
    assert_eq!(
        (response.status, response.json()["code"].as_str()),
        (412, Some("FAILED_PRECONDITION"))
    );
    assert_eq!(fs::read_to_string(daemon.file("f")).unwrap(), "first");
}

#[tokio::test]
async fn conditions_that_cannot_be_checked_change_nothing() {
    let daemon = start_runtime().await;
    fs::write(daemon.file("f"), "old").unwrap();
    let modified = "if-unmodified-since: Sun, 09 Sep 2001 01:46:39 GMT";
    for condition in ["if-match: \"x\"", "if-match: *", "if-none-match: \"x\"", modified] {
        for request in [&["-X", "PUT", "--data-binary", "new"][..], &["-X", "DELETE"]] {
            let arguments = [request, &["-H", condition]].concat();
            let (status, code) = rest_error(&daemon, &arguments, PATH);
            assert_eq!((status, &*code), (501, "UNIMPLEMENTED"), "{arguments:?}");
        }
    }
    let delete = ["-X", "DELETE", "-H", "if-none-match: *"];
    assert_eq!(rest_error(&daemon, &delete, PATH).0, 501);
    assert_eq!(fs::read_to_string(daemon.file("f")).unwrap(), "old");
}

#[tokio::test]
async fn put_takes_whole_files_as_they_are() {
    let daemon = start_runtime().await;
    fs::write(daemon.file("f"), "old").unwrap();
    let put = |header| ["-X", "PUT", "--data-binary", "new", "-H", header];
    for (header, status) in [
        ("content-range: bytes 0-2/10", 400),
        ("content-encoding: gzip", 415),
        ("content-encoding: gzip, identity", 415),
    ] {
        let (found, code) = rest_error(&daemon, &put(header), PATH);
        assert_eq!((found, &*code), (status, "INVALID_ARGUMENT"), "{header}");
    }
    assert_eq!(fs::read_to_string(daemon.file("f")).unwrap(), "old");
    assert_eq!(rest(&daemon, &put("content-encoding: identity"), PATH).status, 204);
    assert_eq!(fs::read_to_string(daemon.file("f")).unwrap(), "new");
}

#[tokio::test]
async fn unknown_query_fields_are_rejected() {
    let daemon = start_runtime().await;
    fs::write(daemon.file("f"), "old").unwrap();
    for (request, query) in [
        (&["-X", "PUT", "--data-binary", "new"][..], "mod=0755"),
        (&["-X", "DELETE"], "recursiv=true"),
        (&["-X", "DELETE"], "recursive=true&mode=0755"),
        (&[], "recursive=true"),
    ] {
        let (status, code) = rest_error(&daemon, request, &format!("{PATH}?{query}"));
        assert_eq!((status, &*code), (400, "INVALID_ARGUMENT"), "{request:?} {query}");
    }
    assert_eq!(fs::read_to_string(daemon.file("f")).unwrap(), "old");
}

#[tokio::test]
async fn recursive_takes_the_words_of_the_standards_server() {
    let daemon = start_runtime().await;
    fs::create_dir_all(daemon.file("full/a")).unwrap();
    let delete = ["-X", "DELETE"];
    for (word, status) in
        [("", 409), ("0", 409), ("F", 409), ("False", 409), ("yes", 400), ("tRUE", 400), ("2", 400)]
    {
        let path = format!("/v1/files/full?recursive={word}");
        assert_eq!(rest_error(&daemon, &delete, &path).0, status, "{word}");
    }
    for word in ["1", "t", "T", "TRUE", "true", "True"] {
        fs::create_dir_all(daemon.file("full/a")).unwrap();
        let path = format!("/v1/files/full?recursive={word}");
        assert_eq!(rest(&daemon, &delete, &path).status, 204, "{word}");
    }
}
