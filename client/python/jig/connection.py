"""Addresses, options and channels. The environment variables are those of the command `jig`."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, TypedDict
from urllib.parse import urlsplit

import grpc

from jig.errors import ConfigurationError

PathText: TypeAlias = str | os.PathLike[str]

# A response has at most 4 MiB, unless the request allows more: base64 of a file of 10 MiB.
MAX_RESPONSE_BYTES = 64 << 20
KEEP_ALIVE_INTERVAL_MS = 30_000
KEEP_ALIVE_TIMEOUT_MS = 20_000
DEFAULT_RETRIES = 5
# Bounds of the delay between attempts to connect, as those between retries of calls.
MIN_RECONNECT_DELAY_MS = 100
MAX_RECONNECT_DELAY_MS = 2000
ADDRESS_HINT = "write `host:port`, `http://host:port`, `https://host:port` or `unix:/path`"
TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII | re.I)


class ClientOptions(TypedDict, total=False):
    """Options of a client. One that is not given takes the environment variable named with it."""

    key: str
    """API key. `JIG_KEY`."""
    workspace: str
    """Name of a workspace of the daemon. By default, its first one. `JIG_WORKSPACE`."""
    session: str
    """Conversation that the calls belong to. By default, `default`. `JIG_SESSION`."""
    deadline_sec: float | None
    """Maximum duration of a call with its retries, above 0. By default, none. `JIG_DEADLINE`."""
    retries: int
    """Maximum number of retries of a call. By default, 5.

    With 0, calls have no request id unless `request_id` is set. A call that is cancelled then ends
    its command at once. With a request id, the command continues for 30 seconds by default.
    """
    request_id: str
    """Idempotency key of the next call that changes something. By default, a new one for each."""
    ca: PathText
    """PEM file with the CA certificates of the daemon. By default, the system's. `JIG_CA`."""
    client_cert: PathText
    """PEM file with the client certificate. `JIG_CLIENT_CERT`."""
    client_key: PathText
    """PEM file with the private key of `client_cert`. `JIG_CLIENT_KEY`."""
    traceparent: str
    """W3C trace context of the calls. `TRACEPARENT`."""


@dataclass(frozen=True)
class Options:
    """Address of a daemon, and the values of `ClientOptions`."""

    address: str = ""
    key: str = field(default="", repr=False)
    workspace: str = ""
    session: str = ""
    deadline_sec: float | None = None
    retries: int = DEFAULT_RETRIES
    request_id: str = ""
    ca: PathText = ""
    client_cert: PathText = ""
    client_key: PathText = ""
    traceparent: str = ""

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata that each call carries. Raises `ConfigurationError` for invalid values."""
        pairs = (
            ("authorization", f"Bearer {self.key}" if self.key else ""),
            ("jig-workspace", self.workspace),
            ("jig-session", self.session),
            ("traceparent", self.traceparent),
        )
        if self.deadline_sec is not None and not self.deadline_sec > 0:
            raise ConfigurationError(f"the deadline is {self.deadline_sec} s; it must be above 0")
        for name, value in (*pairs, ("jig-request-id", self.request_id)):
            if not (value.isascii() and value.isprintable()):
                raise ConfigurationError(f"the value of {name} must be printable ASCII")
        return tuple((name, value) for name, value in pairs if value)


def with_environment(options: Options, environ: Mapping[str, str] = os.environ) -> Options:
    """Takes options that are not set from the environment."""

    def variable(name: str) -> str:
        return environ.get(name, "")

    deadline_sec = options.deadline_sec
    if deadline_sec is None and (text := variable("JIG_DEADLINE")):
        deadline_sec = parse_seconds("JIG_DEADLINE", text)

    traceparent = options.traceparent or variable("TRACEPARENT")
    return replace(
        options,
        address=options.address or variable("JIG_ADDRESS"),
        key=options.key or variable("JIG_KEY"),
        workspace=options.workspace or variable("JIG_WORKSPACE"),
        session=options.session or variable("JIG_SESSION"),
        deadline_sec=deadline_sec,
        ca=options.ca or variable("JIG_CA"),
        client_cert=options.client_cert or variable("JIG_CLIENT_CERT"),
        client_key=options.client_key or variable("JIG_CLIENT_KEY"),
        # A malformed value starts a new trace, as W3C Trace Context requires.
        traceparent=traceparent if TRACEPARENT.fullmatch(traceparent) else "",
    )


def parse_seconds(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        problem = f"{name} is {text!r}; it must be a number of seconds, such as `30` or `0.5`"
        raise ConfigurationError(problem) from None


@dataclass(frozen=True)
class Target:
    """An address as gRPC takes it."""

    uri: str
    is_tls: bool
    is_unix: bool = False


def parse_address(address: str) -> Target:
    """Parses an address. Raises `ConfigurationError` if it is malformed."""

    def invalid(problem: str) -> ConfigurationError:
        return ConfigurationError(f"`{address}` is not an address: {problem}")

    if not address:
        raise ConfigurationError(
            "no address: give one, set JIG_ADDRESS, or start a daemon with `Client.embedded`"
        )
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        # `unix://HOST/PATH` names a socket of another machine, which cannot be reached.
        if path.startswith("//"):
            path = path.removeprefix("//")
            if not path.startswith("/"):
                raise invalid("write `unix:/path` or `unix:///path`")
        if not path:
            raise invalid("a path must follow `unix:`")
        return Target(f"unix:{path}", is_tls=False, is_unix=True)

    scheme, separator, rest = address.partition("://")
    if not separator:
        scheme, rest = "http", address
    authority = rest.removesuffix("/") if separator else rest
    if scheme not in ("http", "https"):
        raise invalid(ADDRESS_HINT)
    if "@" in authority:
        raise invalid("set the key in `JIG_KEY`, not in the address")
    try:
        parts = urlsplit(f"//{authority}")
        is_valid = bool(parts.hostname and parts.port and parts.netloc == authority)
    except ValueError:
        is_valid = False
    if not is_valid or re.search(r"\s", authority):
        raise invalid(ADDRESS_HINT)
    return Target(authority, is_tls=scheme == "https")


def channel_arguments(options: Options) -> dict[str, Any]:
    """The arguments of a channel to the daemon: target, options, and credentials of TLS."""
    target = parse_address(options.address)
    arguments: dict[str, Any] = {"target": target.uri, "options": channel_options(target)}
    files = (options.ca, options.client_cert, options.client_key)
    if target.is_tls:
        arguments["credentials"] = tls_credentials(*files)
    elif any(files):
        problem = "CA and client certificate need an address with TLS"
        raise ConfigurationError(f"{problem}: write https://{target.uri}")
    return arguments


def channel_options(target: Target) -> list[tuple[str, int | str]]:
    options: list[tuple[str, int | str]] = [
        ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
        ("grpc.max_send_message_length", MAX_RESPONSE_BYTES),
        ("grpc.keepalive_time_ms", KEEP_ALIVE_INTERVAL_MS),
        ("grpc.keepalive_timeout_ms", KEEP_ALIVE_TIMEOUT_MS),
        ("grpc.initial_reconnect_backoff_ms", MIN_RECONNECT_DELAY_MS),
        ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_DELAY_MS),
        # As the command `jig`: a proxy for web pages is not one for the daemon.
        ("grpc.enable_http_proxy", 0),
        # Clients do not share a connection, so that closing one does not disturb another.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if target.is_unix:
        # By default, gRPC sends the path of the socket, which HTTP does not allow here.
        options.append(("grpc.default_authority", "localhost"))
    return options


def tls_credentials(
    ca: PathText, client_cert: PathText, client_key: PathText
) -> grpc.ChannelCredentials:
    if bool(client_cert) != bool(client_key):
        raise ConfigurationError("a client certificate needs both its file and its key")
    return grpc.ssl_channel_credentials(
        root_certificates=read_pem(ca) if ca else system_roots(),
        private_key=read_pem(client_key) if client_key else None,
        certificate_chain=read_pem(client_cert) if client_cert else None,
    )


def read_pem(path: PathText) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {os.fspath(path)}: {error.strerror}") from error


def system_roots() -> bytes | None:
    """The CA certificates of the system. Without them, gRPC uses its own."""
    file = ssl.get_default_verify_paths().cafile
    return Path(file).read_bytes() if file else None
