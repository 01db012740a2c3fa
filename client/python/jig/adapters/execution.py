"""What the adapters have in common: commands, files of the system, and errors of Python."""

from __future__ import annotations

import asyncio
import contextlib
import math
import posixpath
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, Literal, NoReturn, TypeAlias, TypeVar

from jig.client import AsyncClient
from jig.commands import Command
from jig.errors import CallError, Unavailable
from jig.process import AsyncProcess
from jig.results import Output
from jig.v1.messages import ProcessExited, ProcessGap, RunResponse

T = TypeVar("T")
Finished: TypeAlias = RunResponse | ProcessExited

# Bounds of the contract.
MAX_OUTPUT_BYTES = 10 << 20
MAX_STDIN_BYTES = 8 << 20
MAX_TIMEOUT_SEC = 86_400
COMMAND_NOT_FOUND_EXIT_CODE = 127
UNAVAILABLE_REASONS = frozenset(
    {"UNKNOWN_WORKSPACE", "DRAINING", "SANDBOX_UNAVAILABLE", "STATE_LOST", "WORKSPACE_UNAVAILABLE"}
)
# Reasons whose classes are no errors of Python, and stand for these.
PYTHON_ERRORS: Mapping[str, type[OSError]] = {
    "SYMLINK_BLOCKED": PermissionError,
    "POLICY_DENIED": PermissionError,
    "FORBIDDEN": PermissionError,
}
# `PATH_ESCAPE` is also that of an absolute link into the workspace.
LINK_REASONS = frozenset({"SYMLINK_BLOCKED", "PATH_ESCAPE"})
# Runs `"$@"` in a directory that the field `cwd` cannot name.
RUN_IN = ["/bin/sh", "-c", 'cd -- "$0" && exec "$@"']
# Prints a file. The exit codes are those of `to_python_error`.
READ_FILE = '[ -e "$0" ] || exit 102; [ ! -d "$0" ] || exit 121; [ -r "$0" ] || exit 113; cat "$0"'
# Writes a file of a directory that the next command sees: one on the file system of the workspace.
WRITE_FILE = (
    '[ ! -d "$0" ] || exit 121; d=$(dirname -- "$0"); mkdir -p -- "$d" || exit 113; '
    '[ "$(stat -c %d -- "$d")" = "$(stat -c %d -- "$1")" ] || exit 113; cat >"$0" || exit 113'
)
READ_ERRORS: Mapping[int | None, type[OSError]] = {
    102: FileNotFoundError,
    113: PermissionError,
    121: IsADirectoryError,
}


def whole_seconds(timeout: float | None) -> int:
    """The timeout of a command. It has whole seconds, and without one it is the longest."""
    return MAX_TIMEOUT_SEC if timeout is None else min(max(math.ceil(timeout), 1), MAX_TIMEOUT_SEC)


def for_commands(client: AsyncClient) -> AsyncClient:
    """A client whose commands end when their calls are cancelled, as frameworks expect."""
    return client.with_options(retries=0)


async def working_dir(client: AsyncClient) -> str:
    """Returns the path at which commands see the workspace."""
    result = await client.run(["pwd", "-P"])
    result.check()
    return result.stdout.rstrip("\n")


def is_inside(path: str, root: str) -> bool:
    """Whether a path is relative, or below the workspace at `root`."""
    path = posixpath.normpath(posixpath.join(root, path))
    return path == root or path.startswith(f"{root}/")


async def run_command(
    client: AsyncClient,
    command: Command,
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    timeout: float | None = None,
    max_output_bytes: int = MAX_OUTPUT_BYTES,
) -> Finished:
    """Runs a command with input of any size."""
    timeout_sec = whole_seconds(timeout)
    if stdin is None or len(stdin) <= MAX_STDIN_BYTES:
        return await client.run(
            command,
            cwd=cwd,
            env=env,
            stdin=stdin,
            timeout_sec=timeout_sec,
            max_output_bytes=max_output_bytes,
        )
    process = await client.start(
        command, cwd=cwd, env=env, timeout_sec=timeout_sec, max_output_bytes=max_output_bytes
    )
    async with process:
        writing = asyncio.create_task(write_all(process, stdin))
        try:
            return await process.wait()
        finally:
            writing.cancel()
            await asyncio.wait([writing])


async def write_all(process: AsyncProcess, stdin: bytes) -> None:
    # A command can end before it has read all of its input.
    with contextlib.suppress(CallError):
        await process.write(stdin)
        await process.close_stdin()


async def output_bytes(
    client: AsyncClient, result: Finished, stream: Literal["stdout", "stderr"]
) -> bytes:
    """The whole output of a command. Its text has U+FFFD for bytes that are not UTF-8."""
    text = result.stdout if stream == "stdout" else result.stderr
    is_truncated = result.stdout_truncated if stream == "stdout" else result.stderr_truncated
    if not is_truncated and "\ufffd" not in text:
        return text.encode()
    path = result.stdout_path if stream == "stdout" else result.stderr_path
    size = result.stdout_bytes if stream == "stdout" else result.stderr_bytes
    content = await client.read_artifact(path)
    if len(content) < size:
        raise OSError(f"the output has {size} bytes, and the daemon stored {len(content)} of them")
    return content


async def stream_output(client: AsyncClient, command: Command) -> tuple[bytes, ProcessExited]:
    """Runs a command whose output can have any size. Returns its standard output."""
    content = bytearray()
    async with client.stream(command) as events:
        async for event in events:
            if isinstance(event, Output) and event.stream == "stdout":
                content += event.data
            elif isinstance(event, ProcessGap):
                raise OSError("a part of the output was lost with the connection")
            elif isinstance(event, ProcessExited):
                return bytes(content), event
    raise OSError("the output ended before the command")


def in_directory(command: Sequence[str], directory: str) -> list[str]:
    """A command that runs in a directory outside of the workspace."""
    return [*RUN_IN, directory, *command]


async def real_path(client: AsyncClient, path: str) -> str:
    """Resolves links as a command does. Missing components stay as they are."""
    result = await client.run(["realpath", "-m", "--", path])
    if not result.ok:
        raise OSError(result.stderr.strip())
    return result.stdout.removesuffix("\n")


async def follow_links(
    client: AsyncClient, path: str, operation: Callable[[str], Coroutine[Any, Any, T]]
) -> T:
    """Calls an operation on files, which refuses links, with the path that `path` leads to."""
    try:
        return await operation(path)
    except CallError as error:
        if error.reason not in LINK_REASONS:
            raise
        target = await real_path(client, path)
        if target == path:
            raise
        return await operation(target)


async def read_system_file(client: AsyncClient, path: str) -> bytes:
    """Reads a file outside of the workspace as a command sees it."""
    result = await client.run(["/bin/sh", "-c", READ_FILE, path])
    if kind := READ_ERRORS.get(result.exit_code):
        raise kind(f"{path}: {error_text(kind)}")
    result.check()
    return await client.read_artifact(result.stdout_path) if result.stdout_bytes else b""


async def write_system_file(client: AsyncClient, data: bytes, path: str, root: str) -> None:
    """Writes a file of a persistent directory, such as `/tmp`, as a command would."""
    result = await run_command(client, ["/bin/sh", "-c", WRITE_FILE, path, root], stdin=data)
    if result.exit_code == 121:
        raise IsADirectoryError(f"{path}: is a directory")
    if not result.ok:
        raise PermissionError(f"{path}: neither in the workspace nor in a persistent directory")


async def write_file(client: AsyncClient, data: bytes, path: str, root: str) -> None:
    """Writes a file of the workspace at `root`, or of a persistent directory."""

    async def write(path: str) -> None:
        if is_inside(path, root):
            await client.upload(data, path)
        else:
            await write_system_file(client, data, path, root)

    await follow_links(client, path, write)


READ_BITS = 0o444


async def read_file(client: AsyncClient, path: str, root: str, limit: int | None = None) -> bytes:
    """Reads a file as a command would: of the workspace at `root`, or of the system."""

    async def read(path: str) -> bytes:
        if not is_inside(path, root):
            return await read_system_file(client, path)
        status = await client.stat(path)
        # The daemon may read more than a command can.
        if status.type == "FILE" and not status.mode & READ_BITS:
            raise PermissionError(f"{path}: permission denied (mode {status.mode:04o})")
        return await client.read_bytes(path, limit=limit)

    return await follow_links(client, path, read)


def error_text(kind: type[OSError]) -> str:
    texts: Mapping[type[OSError], str] = {
        FileNotFoundError: "no such file",
        IsADirectoryError: "is a directory",
    }
    return texts.get(kind, "permission denied")


@contextlib.contextmanager
def python_errors() -> Generator[None, None, None]:
    """Raises errors of Python for reasons of files, such as `IsADirectoryError`."""
    try:
        yield
    except CallError as error:
        raise_python_error(error)


def raise_python_error(error: CallError) -> NoReturn:
    kind = PYTHON_ERRORS.get(error.reason)
    if error.reason == "NOT_A_FILE":
        kind = IsADirectoryError if "is a directory" in error.message else OSError
    if kind is None:
        raise error
    raise kind(error.message) from error


def is_unavailable(error: CallError) -> bool:
    """Whether the daemon or the workspace cannot be reached, so that no call can succeed."""
    return isinstance(error, Unavailable) or error.reason in UNAVAILABLE_REASONS
