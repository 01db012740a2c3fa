"""An embedded daemon: a `jigd` that lives as long as its client."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path

from jig.connection import PathText
from jig.errors import DaemonStartError

START_TIMEOUT_SEC = 30.0
# The arguments can allow running calls 25 seconds, as is the default elsewhere.
STOP_TIMEOUT_SEC = 40.0
LOG_TAIL_BYTES = 4096

# Ends the daemon when this process closes the pipe or dies, however it dies. The daemon alone has
# the standard output, so that its end is seen.
GUARD = '"$@" </dev/null & daemon=$!; exec >&-; read -r _; kill -TERM $daemon; wait $daemon'


class Daemon:
    """A `jigd` with a private Unix socket and state directory, both deleted at its end.

    `directory` is its workspace. `program` is the path of `jigd`, by default the one in
    `PATH`, or else `jig`, which contains it. `arguments` are further flags, such as `--network`.
    `minimum_level` (`JIG_MINIMUM_LEVEL`) and `chown_workspace` (`JIG_CHOWN_WORKSPACE`) are those of
    `jigd --help`.

    Raises `DaemonStartError`.
    """

    address: str
    """Address for clients: `unix:` and the path of the socket."""
    addresses: list[str]
    """All addresses, with those of further `--listen` flags."""

    def __init__(
        self,
        directory: PathText = ".",
        *,
        program: PathText | None = None,
        minimum_level: str | None = None,
        chown_workspace: bool | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        self._resources = contextlib.ExitStack()
        with contextlib.ExitStack() as starting:
            private = Path(starting.enter_context(temporary_directory()))
            log = private / "log"
            self.addresses = []
            self.address = f"unix:{private / 'jig.sock'}"
            command = [
                *find_program(program),
                f"--listen={self.address}",
                f"--workspace={os.path.abspath(directory)}",
                f"--state-dir={private / 'state'}",
                "--log=text",
                *level_flags(minimum_level, chown_workspace),
                *drain_flags(arguments),
                *arguments,
            ]
            self._process = starting.enter_context(guarded_process(command, log))
            listeners = sum(argument.startswith("--listen") for argument in command)
            self._wait_until_ready(log, listeners)
            self._resources = starting.pop_all()

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the daemon, with all commands, and deletes its directory."""
        self._resources.close()

    def _wait_until_ready(self, log: Path, listeners: int) -> None:
        output = self._process.stdout
        assert output is not None
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            end = time.monotonic() + START_TIMEOUT_SEC
            while selector.select(end - time.monotonic()):
                line = output.readline().decode()
                if not line:
                    break
                self.addresses.append(line.strip().removeprefix("listening on "))
                if len(self.addresses) == listeners:
                    return
        tail = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        raise DaemonStartError(f"the daemon did not start:\n{tail}")


def find_program(program: PathText | None) -> list[str]:
    if program is not None:
        return [os.fspath(program)]
    if jigd := shutil.which("jigd"):
        return [jigd]
    if jig := shutil.which("jig"):
        return [jig, "serve"]
    raise DaemonStartError("neither jigd nor jig is in PATH: install it, or give `program`")


def level_flags(minimum_level: str | None, chown_workspace: bool | None) -> Iterator[str]:
    if level := minimum_level or os.environ.get("JIG_MINIMUM_LEVEL"):
        yield f"--minimum-level={level}"
    is_set = os.environ.get("JIG_CHOWN_WORKSPACE", "").lower() not in ("", "0", "false", "no")
    if is_set if chown_workspace is None else chown_workspace:
        yield "--chown-workspace"


def drain_flags(arguments: Sequence[str]) -> Iterator[str]:
    """By default, calls end with the daemon: its program has left them."""
    if not any(argument.startswith("--drain-timeout") for argument in arguments):
        yield "--drain-timeout=0s"


def daemon_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without variables for other daemons, such as `JIG_LISTEN`."""
    return {name: value for name, value in environ.items() if not name.startswith("JIG_")}


@contextlib.contextmanager
def temporary_directory() -> Generator[str, None, None]:
    # The path of a socket has at most 107 bytes.
    directory = tempfile.mkdtemp(prefix="jig-")
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def guarded_process(
    command: Sequence[str], log: Path
) -> Generator[subprocess.Popen[bytes], None, None]:
    """Starts the daemon, and ends it."""
    with log.open("wb") as errors:
        process = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            # A line in a buffer would not wake the selector.
            bufsize=0,
            env=daemon_environment(os.environ),
            # Ctrl-C in the terminal is for this program, which then ends the daemon.
            start_new_session=True,
        )
    with process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(STOP_TIMEOUT_SEC)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
