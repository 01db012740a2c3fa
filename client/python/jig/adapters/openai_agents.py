"""Tools and sandboxes of the OpenAI Agents SDK.

    Agent(tools=[ShellTool(ShellExecutor(client)), ApplyPatchTool(PatchEditor(client))])
    SandboxRunConfig(client=JigSandboxClient(client), options=JigSandboxClientOptions())

A sandbox is a workspace of its own. The tools work in the workspace of their client.
"""

from __future__ import annotations

import io
import shlex
import uuid
from pathlib import Path
from typing import Literal

from agents import (
    ApplyPatchOperation,
    ApplyPatchResult,
    ShellCallOutcome,
    ShellCommandOutput,
    ShellCommandRequest,
    ShellResult,
    apply_diff,
)
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import SandboxSession, SandboxSessionState
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult, User
from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tar_bytes

from jig.adapters.execution import (
    COMMAND_NOT_FOUND_EXIT_CODE,
    for_commands,
    output_bytes,
    run_command,
    stream_output,
)
from jig.client import AsyncClient
from jig.errors import CallError

DEFAULT_MAX_OUTPUT_LENGTH = 100_000


class ShellExecutor:
    """Executor of `ShellTool`: each command runs in a sandbox of its own."""

    def __init__(self, client: AsyncClient, *, timeout_sec: float | None = None) -> None:
        self._client = for_commands(client)
        self._timeout_sec = timeout_sec

    async def __call__(self, request: ShellCommandRequest) -> ShellResult:
        action = request.data.action
        timeout_sec = action.timeout_ms / 1000 if action.timeout_ms else self._timeout_sec
        limit = action.max_output_length or DEFAULT_MAX_OUTPUT_LENGTH
        outputs: list[ShellCommandOutput] = []
        for command in action.commands:
            result = await run_command(
                self._client, command, timeout=timeout_sec, max_output_bytes=limit
            )
            is_timeout = result.outcome == "TIMED_OUT"
            outcome = ShellCallOutcome(
                type="timeout" if is_timeout else "exit",
                exit_code=None if is_timeout else result.shell_exit_code,
            )
            outputs.append(ShellCommandOutput(result.stdout, result.stderr, outcome, command))
            if is_timeout:
                break
        return ShellResult(outputs, max_output_length=action.max_output_length)


class PatchEditor:
    """Editor of `ApplyPatchTool`: changes files of the workspace.

    A file that has changed between its reading and its writing is not overwritten.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        content = apply_diff("", operation.diff or "", mode="create")
        try:
            await self._client.write_file(operation.path, content, mode="CREATE_NEW")
        except CallError as error:
            return failed(error)
        return ApplyPatchResult(status="completed", output=f"Created {operation.path}")

    async def update_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        target = operation.move_to or operation.path
        try:
            original = await self._client.read_bytes(operation.path)
            status = await self._client.stat(operation.path)
            content = apply_diff(original.decode(), operation.diff or "")
            await self._client.write_file(
                operation.path, content, expected_sha256=status.sha256, file_mode=status.mode
            )
            if target != operation.path:
                await self._client.move_path(operation.path, target)
        except (CallError, ValueError) as error:
            return failed(error)
        return ApplyPatchResult(status="completed", output=f"Updated {target}")

    async def delete_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        try:
            await self._client.delete_path(operation.path)
        except CallError as error:
            return failed(error)
        return ApplyPatchResult(status="completed", output=f"Deleted {operation.path}")


def failed(error: Exception) -> ApplyPatchResult:
    return ApplyPatchResult(status="failed", output=str(error))


class JigSandboxClientOptions(BaseSandboxClientOptions):
    """Options of a sandbox."""

    type: Literal["jig"] = "jig"  # pyright: ignore[reportIncompatibleVariableOverride]
    clone_of: str | None = None
    """Workspace whose files the sandbox gets a copy of. By default, it begins empty."""
    ttl_sec: int | None = None
    """Seconds after which the daemon deletes the workspace."""
    keep: bool = False
    """Whether the workspace remains after the end of the session, so that it can be resumed."""


class JigSandboxSessionState(SandboxSessionState):
    """State of a session, which can be stored."""

    type: Literal["jig"] = "jig"  # pyright: ignore[reportIncompatibleVariableOverride]
    workspace: str
    options: JigSandboxClientOptions


class JigSandboxSession(BaseSandboxSession):
    """A session in a workspace."""

    state: JigSandboxSessionState  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, client: AsyncClient, state: JigSandboxSessionState) -> None:
        self.state = state  # pyright: ignore[reportIncompatibleVariableOverride]
        self._of_daemon = client
        self._client = client.with_options(workspace=state.workspace)

    async def _exec_internal(
        self, *command: str | Path, timeout: float | None = None
    ) -> ExecResult:
        argv = [str(part) for part in command]
        environment = await self.state.manifest.environment.resolve()
        try:
            result = await run_command(
                for_commands(self._client), argv, env=environment, timeout=timeout
            )
        except CallError as error:
            if error.reason == "COMMAND_NOT_FOUND":
                message = error.message.encode()
                return ExecResult(stdout=b"", stderr=message, exit_code=COMMAND_NOT_FOUND_EXIT_CODE)
            raise ExecTransportError(command=argv, cause=error, message=error.message) from error
        if result.outcome == "TIMED_OUT":
            raise ExecTimeoutError(command=argv, timeout_s=timeout)
        return ExecResult(
            stdout=await output_bytes(self._client, result, "stdout"),
            stderr=await output_bytes(self._client, result, "stderr"),
            exit_code=result.shell_exit_code,
        )

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        if user is not None:
            await self._check_read_with_exec(path, user=user)
        target = await self._validate_path_access(path)
        try:
            return io.BytesIO(await self._client.read_bytes(target.as_posix()))
        except CallError as error:
            if error.reason in ("FILE_NOT_FOUND", "NOT_A_DIRECTORY"):
                raise WorkspaceReadNotFoundError(path=target, cause=error) from error
            raise WorkspaceArchiveReadError(path=target, cause=error) from error

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        if user is not None:
            await self._check_write_with_exec(path, user=user)
        target = await self._validate_path_access(path, for_write=True)
        payload = data.read()
        content = payload.encode() if isinstance(payload, str) else bytes(payload)
        try:
            await self._client.upload(content, target.as_posix())
        except CallError as error:
            raise WorkspaceArchiveWriteError(path=target, cause=error) from error

    async def running(self) -> bool:
        try:
            await self._of_daemon.get_workspace(self.state.workspace)
        except CallError:
            return False
        return True

    async def persist_workspace(self) -> io.IOBase:
        root = self._workspace_root_path()
        skipped = [f"--exclude=./{path}" for path in self._persist_workspace_skip_relpaths()]
        command = ["tar", *skipped, "-C", str(root), "-cf", "-", "."]
        archive, ended = await stream_output(self._client, command)
        if not ended.ok:
            raise WorkspaceArchiveReadError(path=root, context={"reason": "tar_failed"})
        return io.BytesIO(archive)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        root = self._workspace_root_path()
        payload = data.read()
        archive = payload.encode() if isinstance(payload, str) else bytes(payload)
        try:
            validate_tar_bytes(archive, allow_external_symlink_targets=False)
        except UnsafeTarMemberError as error:
            context = {"reason": "unsafe_or_invalid_tar", "member": error.member}
            raise WorkspaceArchiveWriteError(path=root, context=context, cause=error) from error
        command = f"tar -C {shlex.quote(str(root))} -xf -"
        result = await run_command(self._client, command, stdin=archive)
        if not result.ok:
            context = {"reason": "tar_failed", "output": result.stderr}
            raise WorkspaceArchiveWriteError(path=root, context=context)

    async def _shutdown_backend(self) -> None:
        if not self.state.options.keep:
            await delete_workspace(self._of_daemon, self.state.workspace)


class JigSandboxClient(BaseSandboxClient[JigSandboxClientOptions]):
    """Creates sandboxes: workspaces of a daemon."""

    backend_id = "jig"

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: JigSandboxClientOptions,
    ) -> SandboxSession:
        manifest = self._validate_manifest_for_create(manifest or Manifest())
        session_id = uuid.uuid4()
        state = JigSandboxSessionState(
            session_id=session_id,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            workspace=await self._create_workspace(options),
            options=options,
        )
        return self._wrap_session(JigSandboxSession(self._client, state))

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Attaches to the workspace, or creates one from the snapshot if it is gone."""
        if not isinstance(state, JigSandboxSessionState):
            raise TypeError(f"the state is of {state.type!r}; it must be of 'jig'")
        state.assert_path_grants_rebound()
        inner = JigSandboxSession(self._client, state)
        is_there = await inner.running()
        if not is_there:
            state.workspace = await self._create_workspace(state.options)
            state.workspace_root_ready = False
            inner = JigSandboxSession(self._client, state)
        inner._set_start_state_preserved(is_there, system=is_there)
        return self._wrap_session(inner)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        if isinstance(session.state, JigSandboxSessionState):
            await delete_workspace(self._client, session.state.workspace)
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, JigSandboxSessionState)

    async def _create_workspace(self, options: JigSandboxClientOptions) -> str:
        workspace = await self._client.create_workspace(
            clone_of=options.clone_of, ttl_sec=options.ttl_sec
        )
        return workspace.name


async def delete_workspace(client: AsyncClient, name: str) -> None:
    """Deletes a workspace that may be gone."""
    try:
        await client.delete_workspace(name)
    except CallError as error:
        if error.reason != "UNKNOWN_WORKSPACE":
            raise
