//! A web for scenarios: `site.jig.test` serves the files of the workspace and some special paths.

use std::{io, net::TcpStream, path::Path, sync::Arc};

use crate::{
    fetch::{ALLOWED_HOST, HttpSite, OTHER_HOST, PRIVATE_ADDRESS, write_response},
    support::{Daemon, Setup, TestNetwork},
};

/// A daemon that may fetch from the site, from a closed port of it, from an unknown host, and from
/// a host whose address is not public. It may not fetch from `other.jig.test`.
pub(super) fn setup() -> Setup {
    let network =
        TestNetwork::with_hosts(&[ALLOWED_HOST, OTHER_HOST, ("inner.jig.test", PRIVATE_ADDRESS)]);
    let hosts = [ALLOWED_HOST.0, "site.jig.test:81", "unknown.jig.test", "inner.jig.test"];
    let table = format!("[fetch]\nhosts = {hosts:?}\nallow_addresses = [{:?}]", ALLOWED_HOST.1);
    let setup = network.setup().workspace_table(&table);
    setup.with_resource(Arc::new(network))
}

/// Serves the site. `/status/CODE` answers with that code, `/to/URL` redirects, and `/silent` never
/// answers.
pub(super) fn serve(daemon: &Daemon) {
    let workspace = daemon.workspace();
    let _ends_with_the_process =
        HttpSite::start(daemon, ALLOWED_HOST.1, 80, move |path, stream| {
            respond(&workspace, path, stream)
        });
}

fn respond(workspace: &Path, path: &str, stream: &mut TcpStream) -> io::Result<()> {
    const PLAIN: &str = "Content-Type: text/plain\r\n";

    if let Some(code) = path.strip_prefix("/status/") {
        return write_response(stream, &format!("{code} Told"), PLAIN, b"told");
    }

    if let Some(location) = path.strip_prefix("/to/") {
        return write_response(stream, "302 Found", &format!("Location: {location}\r\n"), b"");
    }

    if path == "/silent" {
        return io::copy(stream, &mut io::sink()).map(drop);
    }

    let kind = match path.rsplit_once('.') {
        Some((_, "htm")) => "Content-Type: text/html\r\n",
        Some((_, "html")) => "Content-Type: text/html; charset=utf-8\r\n",
        Some((_, "json")) => "Content-Type: application/json\r\n",
        Some((_, "png")) => "Content-Type: image/png\r\n",
        Some((_, "txt")) => PLAIN,
        _ => "",
    };
    match std::fs::read(workspace.join(path.trim_start_matches('/'))) {
        Ok(content) => write_response(stream, "200 OK", kind, &content),
        Err(_) => write_response(stream, "404 Not Found", PLAIN, b"missing"),
    }
}
