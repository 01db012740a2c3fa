"""Sandbox of Inspect: each sample has a workspace of its own.

    Task(dataset=…, solver=…, sandbox="jig")

The daemon is that of `JIG_ADDRESS`, or of a `JigSandboxConfig`.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Literal, overload
from weakref import WeakKeyDictionary

from inspect_ai.util import (
    ExecCompleted,
    ExecRemoteAwaitableOptions,
    ExecRemoteProcess,
    ExecRemoteStreamingOptions,
    ExecResult,
    ExecStderr,
    ExecStdout,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel

from jig.adapters.execution import (
    COMMAND_NOT_FOUND_EXIT_CODE,
    MAX_OUTPUT_BYTES,
    for_commands,
    in_directory,
    is_inside,
    is_unavailable,
    python_errors,
    read_file,
    run_command,
    whole_seconds,
    working_dir,
    write_file,
)
from jig.client import AsyncClient
from jig.errors import CallError
from jig.process import AsyncProcess
from jig.results import Output
from jig.v1.messages import ProcessExited, ProcessGap, ProcessStarted

SANDBOX_USERS = (None, "agent")

# A client belongs to an event loop.
clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, AsyncClient]] = WeakKeyDictionary()


class JigSandboxConfig(BaseModel, frozen=True):
    """Configuration of the sandbox: `SandboxEnvironmentSpec("jig", JigSandboxConfig(…))`."""

    address: str = ""
    """Address of the daemon. By default, that of `JIG_ADDRESS`. `JIG_KEY` has the key."""
    clone_of: str | None = None
    """Workspace whose files each sample gets a copy of. By default, it begins empty."""
    ttl_sec: int | None = 86_400
    """Seconds after which the daemon deletes a workspace that a crashed evaluation has left."""


def client_of(address: str) -> AsyncClient:
    of_loop = clients.setdefault(asyncio.get_running_loop(), {})
    if address not in of_loop:
        of_loop[address] = AsyncClient(address)
    return of_loop[address]


@sandboxenv(name="jig")
class JigSandboxEnvironment(SandboxEnvironment):
    """Runs commands and keeps files in one workspace."""

    def __init__(self, client: AsyncClient, directory: str) -> None:
        super().__init__()
        self.client = client
        self.directory = directory
        """Path at which commands see the workspace."""

    @classmethod
    async def sample_init(
        cls, task_name: str, config: BaseModel | str | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        settings = config if isinstance(config, JigSandboxConfig) else JigSandboxConfig()
        client = client_of(settings.address)
        workspace = await client.create_workspace(
            labels={"inspect-task": task_name[:200]},
            clone_of=settings.clone_of,
            ttl_sec=settings.ttl_sec,
        )
        return {"default": cls(client.with_options(workspace=workspace.name), workspace.mount_path)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: BaseModel | str | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            client = environment.as_type(JigSandboxEnvironment).client
            await client.delete_workspace(client.workspace)

    @classmethod
    async def task_cleanup(
        cls, task_name: str, config: BaseModel | str | None, cleanup: bool
    ) -> None:
        for client in clients.pop(asyncio.get_running_loop(), {}).values():
            await client.close()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return JigSandboxConfig(**config)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Runs a command once: one that timed out is not repeated."""
        check_user(user)
        limit = min(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE, MAX_OUTPUT_BYTES)
        command, cwd = self.place(cmd, cwd)
        stdin = input.encode() if isinstance(input, str) else input
        with inspect_errors():
            try:
                result = await run_command(
                    for_commands(self.client),
                    command,
                    cwd=cwd,
                    env=env,
                    stdin=stdin,
                    timeout=timeout,
                    max_output_bytes=limit,
                )
            except CallError as error:
                if error.reason != "COMMAND_NOT_FOUND":
                    raise
                return ExecResult(False, COMMAND_NOT_FOUND_EXIT_CODE, "", error.message)
        if result.outcome == "TIMED_OUT":
            raise TimeoutError(f"the command was killed after {timeout} s")
        if result.stdout_truncated or result.stderr_truncated:
            truncated = result.stdout if result.stdout_truncated else result.stderr
            raise OutputLimitExceededError(
                SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, truncated
            )
        return ExecResult(result.ok, result.shell_exit_code, result.stdout, result.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        data = contents.encode() if isinstance(contents, str) else contents
        with inspect_errors(), python_errors():
            await write_file(self.client, data, file, self.directory)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...
    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Reads a file of the workspace, or one of the system that commands can read."""
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        with inspect_errors(), python_errors():
            data = await read_file(self.client, file, self.directory, limit + 1)
        if len(data) > limit:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else data

    @overload
    async def exec_remote(
        self,
        cmd: list[str],
        options: ExecRemoteStreamingOptions | None = None,
        *,
        stream: Literal[True] = True,
    ) -> ExecRemoteProcess: ...
    @overload
    async def exec_remote(
        self,
        cmd: list[str],
        options: ExecRemoteAwaitableOptions | None = None,
        *,
        stream: Literal[False],
    ) -> ExecResult[str]: ...
    async def exec_remote(
        self,
        cmd: list[str],
        options: ExecRemoteStreamingOptions | ExecRemoteAwaitableOptions | None = None,
        *,
        stream: bool = True,
    ) -> ExecRemoteProcess | ExecResult[str]:
        """Streams from the daemon. Nothing is installed in the sandbox, and nothing is polled."""
        options = options or ExecRemoteStreamingOptions()
        if not stream:
            timeout = getattr(options, "timeout", None)
            seconds = None if timeout is None else whole_seconds(timeout)
            return await self.exec(
                cmd, options.input, options.cwd, options.env, options.user, seconds
            )
        check_user(options.user)
        command, cwd = self.place(cmd, options.cwd)
        with inspect_errors():
            process = await for_commands(self.client).start(command, cwd=cwd, env=options.env)
            if options.input is not None:
                await process.write(options.input)
            if not getattr(options, "stdin_open", False):
                await process.close_stdin()
        return JigProcess(process)

    def place(self, command: list[str], cwd: str | None) -> tuple[list[str], str | None]:
        """The command and its `cwd` as the daemon takes them."""
        if cwd is None or is_inside(cwd, self.directory):
            return command, cwd
        return in_directory(command, cwd), None


class JigProcess(ExecRemoteProcess):
    """A running command of `exec_remote`."""

    def __init__(self, process: AsyncProcess) -> None:
        # The base class would poll a program in the sandbox.
        self._process = process
        self._decoders = {
            name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")
        }

    @property
    def pid(self) -> int:
        raise NotImplementedError("processes of jig have an id and no process number")

    async def __anext__(self) -> ExecStdout | ExecStderr | ExecCompleted:
        try:
            while True:
                event = await self._process.__anext__()
                match event:
                    case Output(stream=stream, data=data):
                        text = self._decoders[stream].decode(data)
                        return ExecStdout(text) if stream == "stdout" else ExecStderr(text)
                    case ProcessExited():
                        return ExecCompleted(event.shell_exit_code)
                    case ProcessStarted() | ProcessGap():
                        continue
        except asyncio.CancelledError:
            await asyncio.shield(self.kill())
            raise

    def __aiter__(self) -> JigProcess:
        return self

    async def write_stdin(self, data: str | bytes) -> None:
        await self._process.write(data)

    async def close_stdin(self) -> None:
        await self._process.close_stdin()

    async def kill(self) -> None:
        await self._process.close()


def check_user(user: str | None) -> None:
    if user not in SANDBOX_USERS:
        raise SandboxUserUnsupportedError(
            f"the sandbox has one user, `agent`, and cannot run commands as {user!r}"
        )


@contextmanager
def inspect_errors() -> Generator[None, None, None]:
    try:
        yield
    except CallError as error:
        if is_unavailable(error):
            raise SandboxUnavailableError(error.message) from error
        if error.reason == "COMMAND_NOT_EXECUTABLE":
            raise PermissionError(error.message) from error
        raise


async def attach(client: AsyncClient) -> JigSandboxEnvironment:
    """Returns a sandbox in an existing workspace, which the caller deletes."""
    return JigSandboxEnvironment(client, await working_dir(client))
