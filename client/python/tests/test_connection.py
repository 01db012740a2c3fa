"""Addresses, environment variables, keys and TLS."""

import os
import subprocess
import time
from pathlib import Path

import conftest
import pytest

import jig
from jig.connection import Options, Target, parse_address, with_environment
from jig.v1 import reasons


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("127.0.0.1:50051", Target("127.0.0.1:50051", is_tls=False)),
        ("[::1]:50051", Target("[::1]:50051", is_tls=False)),
        ("http://host:80/", Target("host:80", is_tls=False)),
        ("https://host:443", Target("host:443", is_tls=True)),
        ("unix:/run/jig.sock", Target("unix:/run/jig.sock", is_tls=False, is_unix=True)),
        ("unix:///run/jig.sock", Target("unix:/run/jig.sock", is_tls=False, is_unix=True)),
        ("unix:here.sock", Target("unix:here.sock", is_tls=False, is_unix=True)),
    ],
)
def test_valid_addresses(address: str, target: Target) -> None:
    assert parse_address(address) == target


INVALID = (
    "50051 :50051 host host: host:0 host:99999 host:80/path http:// https://host user@host:80"
    " HTTPS://host:443 ftp://host:21 unix: unix:// unix://host/path /run/jig.sock"
)


@pytest.mark.parametrize("address", ["", "a b:80", *INVALID.split()])
def test_invalid_addresses(address: str) -> None:
    with pytest.raises(jig.ConfigurationError):
        parse_address(address)


def test_options_come_from_the_environment() -> None:
    environ = {
        "JIG_ADDRESS": "host:1",
        "JIG_KEY": "secret",
        "JIG_WORKSPACE": "app",
        "JIG_SESSION": "",
        "JIG_DEADLINE": "0.5",
        "TRACEPARENT": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    options = with_environment(Options(workspace="given"), environ)
    assert (options.address, options.workspace, options.deadline_sec) == ("host:1", "given", 0.5)
    assert options.metadata() == (
        ("authorization", "Bearer secret"),
        ("jig-workspace", "given"),
        ("traceparent", environ["TRACEPARENT"]),
    )
    assert "secret" not in repr(options)
    assert with_environment(Options(), {"TRACEPARENT": "x"}).metadata() == ()


@pytest.mark.parametrize(
    "options",
    [
        {"key": "a\nb"},
        {"workspace": "\x7f"},
        {"session": "é"},
        {"deadline_sec": 0},
        {"request_id": "\t"},
        {"ca": "ca.pem"},
    ],
)
def test_invalid_options_are_rejected(options: jig.ClientOptions) -> None:
    with pytest.raises(jig.ConfigurationError):
        jig.Client("host:1", **options)


def test_invalid_files_of_tls_are_rejected(tmp_path: Path) -> None:
    none = tmp_path / "none"
    for options in (jig.ClientOptions(ca=none), jig.ClientOptions(client_cert=none)):
        with pytest.raises(jig.ConfigurationError):
            jig.Client("https://host:1", **options)


def test_sessions_and_copies_of_a_client(client: jig.Client) -> None:
    other = client.with_options(session="another-session")
    other.run("echo other")
    client.run("echo own")
    assert other.last_command().stdout == "other\n"
    assert client.last_command().stdout == "own\n"
    with pytest.raises(jig.ConfigurationError):
        client.with_options(session="é")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_tls_keys_and_client_certificates(kind: str, tmp_path: Path) -> None:
    directory = tmp_path / "tls"
    directory.mkdir(mode=0o700)
    make_certificates(directory)
    program = Path(conftest.PROGRAM)
    keys = directory / "keys.toml"
    jig_program = program.with_name("jig") if program.name == "jigd" else program
    new_key: list[str | Path] = [jig_program, "key", "--keys", keys, "new"]
    certificate = "uri:spiffe://example.org/builder"
    subprocess.run([*new_key, "builder", "--certificate", certificate], check=True)
    key = subprocess.check_output([*new_key, "reader", "--role", "read"], text=True).strip()
    limited = subprocess.check_output([*new_key, "limited", "--for-tool", "run"], text=True).strip()

    (tmp_path / "workspace").mkdir()
    arguments = ["--listen=127.0.0.1:0", f"--keys={keys}", f"--tls-client-ca={directory}/ca.crt"]
    arguments += [f"--tls-cert={directory}/server.crt", f"--tls-key={directory}/server.key"]
    with jig.Daemon(tmp_path / "workspace", program=program, arguments=arguments) as daemon:
        (tcp,) = [address for address in daemon.addresses if not address.startswith("unix:")]
        address = f"https://{tcp}"
        ca = directory / "ca.crt"
        files = {"client_cert": directory / "builder.crt", "client_key": directory / "builder.key"}
        for client in conftest.connect(kind, address, ca=ca, **files):
            assert client.run("echo hello").stdout == "hello\n"
        for client in conftest.connect(kind, address, ca=ca, key=key):
            assert client.tools("anthropic") is not None
            with pytest.raises(reasons.Forbidden):
                client.run("true")
        for client in conftest.connect(kind, address, ca=ca, key=limited):
            # Without `wait_job`, a pending call stays pending.
            begin = time.monotonic()
            call = {"type": "tool_use", "id": "c", "name": "run", "input": {"command": "sleep 9"}}
            results = client.handle([call], wait_sec=5, approve=lambda approval: None)
            assert results.outcomes[0].pending and time.monotonic() - begin < 4
            assert client.cancel_job(results.outcomes[0].job_id).state == "CANCELLED"
        for client in conftest.connect(kind, address, ca=ca):
            with pytest.raises(reasons.Unauthenticated):
                client.run("true")
        for client in conftest.connect(kind, address, key=key, retries=0):
            with pytest.raises(jig.Unavailable, match=r"(?i)certificate|handshake|ssl"):
                client.run("true")


def make_certificates(directory: Path) -> None:
    def openssl(*arguments: str) -> None:
        command = ["openssl", *arguments]
        subprocess.run(command, check=True, cwd=directory, stderr=subprocess.DEVNULL)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    ca = ["-subj", "/CN=jig test CA", "-days", "2", "-keyout", "ca.key", "-out", "ca.crt"]
    openssl("req", "-x509", *key, *ca)
    for name, alternative in (
        ("server", "DNS:localhost,IP:127.0.0.1"),
        ("builder", "URI:spiffe://example.org/builder"),
    ):
        request = ["-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr"]
        openssl("req", *key, *request)
        extensions = f"subjectAltName={alternative}\nbasicConstraints=critical,CA:FALSE\n"
        (directory / "extensions").write_text(extensions)
        issuer = ["-CA", "ca.crt", "-CAkey", "ca.key", "-days", "2", "-extfile", "extensions"]
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *issuer)
        os.chmod(directory / f"{name}.key", 0o600)
