//! Requests by curl(1).

use std::{
    collections::HashMap,
    process::{Command, Stdio},
};

use serde_json::Value as Json;

use super::Daemon;

/// A response as curl prints it.
#[derive(Debug)]
pub(crate) struct CurlResponse {
    pub(crate) status: u16,
    /// By lower-case name. Of several values, the last.
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
}

impl CurlResponse {
    pub(crate) fn json(&self) -> Json {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// curl with arguments, for a path of the daemon's Unix socket.
pub(crate) fn curl_command(daemon: &Daemon, arguments: &[&str], path: &str) -> Command {
    let mut command = Command::new("curl");
    command
        .args(["--silent", "--show-error", "--no-buffer", "--unix-socket"])
        .arg(daemon.socket())
        .args(arguments)
        .arg(format!("http://localhost{path}"))
        .env_clear()
        .stdin(Stdio::null());
    command
}

/// Runs curl with arguments for a path of the daemon, and returns the response.
pub(crate) fn curl(daemon: &Daemon, arguments: &[&str], path: &str) -> CurlResponse {
    let output = curl_command(daemon, arguments, path).arg("--include").output().unwrap();
    assert!(output.status.success(), "{arguments:?} {path}: {output:?}");
    parse_curl_response(&String::from_utf8(output.stdout).unwrap())
}

/// Reads a response as `curl --include` prints it.
pub(crate) fn parse_curl_response(text: &str) -> CurlResponse {
    let text = text.strip_prefix("HTTP/1.1 100 Continue\r\n\r\n").unwrap_or(text);
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap();
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(':').unwrap();
        (name.to_ascii_lowercase(), value.trim().to_owned())
    });
    CurlResponse {
        status: status.parse().unwrap(),
        headers: headers.collect(),
        body: body.to_owned(),
    }
}
