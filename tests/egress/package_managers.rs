//! npm, Cargo and Go, each of which reads the proxy's variables in its own way. They install from
//! the test's index and from no other.

use std::{path::Path, process::Command};

use tempfile::TempDir;

use super::{ALLOWED, OTHER};
use crate::support::{
    Daemon, ReceivedRequests, TestNetwork, run_setup_script, shell, start_http_server,
};

/// Creates an index for each package manager, with one package in it.
const INDEXES_SCRIPT: &str = r#"
import hashlib, io, json, os, tarfile, zipfile
def tar(files):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode='w:gz') as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return content.getvalue()
def put(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, 'wb').write(content if isinstance(content, bytes) else content.encode())

package = {'name': 'jigpkg', 'version': '1.0.0', 'main': 'index.js'}
archive = tar({'package/package.json': json.dumps(package), 'package/index.js': 'module.exports = "installed"\n'})
put('npm/archives/jigpkg-1.0.0.tgz', archive)
dist = {'tarball': 'http://packages.jig.test/npm/archives/jigpkg-1.0.0.tgz', 'shasum': hashlib.sha1(archive).hexdigest()}
put('npm/jigpkg', json.dumps({'name': 'jigpkg', 'dist-tags': {'latest': '1.0.0'}, 'versions': {'1.0.0': {**package, 'dist': dist}}}))

manifest = '[package]\nname = "jigpkg"\nversion = "1.0.0"\nedition = "2021"\n'
archive = tar({'jigpkg-1.0.0/Cargo.toml': manifest, 'jigpkg-1.0.0/src/lib.rs': '// installed\n'})
put('crates/jigpkg/1.0.0/download', archive)
put('index/config.json', json.dumps({'dl': 'http://packages.jig.test/crates'}))
entry = {'name': 'jigpkg', 'vers': '1.0.0', 'deps': [], 'cksum': hashlib.sha256(archive).hexdigest(), 'features': {}, 'yanked': False}
put('index/ji/gp/jigpkg', json.dumps(entry) + '\n')

versions = 'go/jig.test/pkg/@v/'
put(versions + 'list', 'v1.0.0\n')
put(versions + 'v1.0.0.info', '{"Version": "v1.0.0"}')
put(versions + 'v1.0.0.mod', 'module jig.test/pkg\n')
content = io.BytesIO()
with zipfile.ZipFile(content, 'w') as archive:
    archive.writestr('jig.test/pkg@v1.0.0/go.mod', 'module jig.test/pkg\n')
    archive.writestr('jig.test/pkg@v1.0.0/pkg.go', 'package pkg // installed\n')
put(versions + 'v1.0.0.zip', content.getvalue())
"#;

/// A daemon with Cargo and Go for its commands, and the requests that the allowed and the other
/// host receive.
async fn start_with_indexes() -> (TestNetwork, TempDir, Daemon, [ReceivedRequests; 2]) {
    run_setup_script("tests/real_work/install.sh");
    let directory = TempDir::with_prefix("jig-test-indexes-").unwrap();
    host_stdout(Command::new("python3").args(["-c", INDEXES_SCRIPT]).current_dir(directory.path()));
    let sysroot = host_stdout(Command::new("rustc").args(["--print", "sysroot"]));
    let rust = format!("{}:/rust", Path::new(sysroot.trim()).display());
    let network = TestNetwork::with_hosts(&[ALLOWED, OTHER]);
    let daemon = network
        .proxy_setup(&[ALLOWED.0], &[ALLOWED.1])
        .arguments(&["--bind-ro", &rust, "--path", "/rust/bin"])
        .arguments(&["--path", "/usr/local/go/bin"])
        .start()
        .await;

    let hosts = [ALLOWED.1, OTHER.1]
        .map(|host| start_http_server(&daemon, host, 80, Some(directory.path().to_owned())));
    (network, directory, daemon, hosts)
}

/// Standard output of a program on the host.
fn host_stdout(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that installs a package from `$host`. With the allowed host it succeeds. With the
/// other host it reports the reason, and no host receives a request.
async fn assert_installs_only_from_allowed_host(command: &str) {
    let (_network, _directory, daemon, [allowed, other]) = start_with_indexes().await;
    let with_host = |host: &str| shell(&format!("host={host}\n{command}"));
    let response = daemon.run(with_host(ALLOWED.0)).await;
    assert!(response.stdout.ends_with("installed\n"), "{response:?}");
    assert!(allowed.heads().len() >= 2, "{:?}", allowed.heads());

    let before = allowed.heads().len();
    let response = daemon.run(with_host(OTHER.0)).await;
    assert_ne!(response.exit_code, Some(0), "{response:?}");
    assert!(response.stderr.contains("403"), "{response:?}");
    assert_eq!(other.heads(), [""; 0]);
    assert_eq!(allowed.heads().len(), before);
}

#[tokio::test]
async fn npm_installs_only_from_the_allowed_host() {
    assert_installs_only_from_allowed_host(
        "mkdir /tmp/app && cd /tmp/app && echo '{}' > package.json && \
         npm install --no-audit --no-fund --no-update-notifier --fetch-retries 0 --registry http://$host/npm/ jigpkg && \
         node -e 'console.log(require(\"jigpkg\"))'",
    )
    .await;
}

#[tokio::test]
async fn cargo_fetches_only_from_the_allowed_host() {
    assert_installs_only_from_allowed_host(
        "export CARGO_NET_RETRY=0
         cargo new --quiet --vcs none /tmp/app && cd /tmp/app && echo 'jigpkg = \"1\"' >> Cargo.toml && \
         cargo --config 'source.crates-io.replace-with=\"mirror\"' --config \"source.mirror.registry='sparse+http://$host/index/'\" fetch && \
         grep -ho installed ~/.cargo/registry/src/*/jigpkg-1.0.0/src/lib.rs",
    )
    .await;
}

#[tokio::test]
async fn go_downloads_only_from_the_allowed_host() {
    assert_installs_only_from_allowed_host(
        "export GOPROXY=http://$host/go GOSUMDB=off GOTOOLCHAIN=local GOFLAGS=-mod=mod
         mkdir /tmp/app && cd /tmp/app && go mod init app && go mod download jig.test/pkg@v1.0.0 && \
         grep -o installed ~/go/pkg/mod/jig.test/pkg@v1.0.0/pkg.go",
    )
    .await;
}
