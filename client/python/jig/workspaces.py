"""Operations that create and delete workspaces while the daemon runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jig.caller import Caller
from jig.steps import Steps, operation
from jig.v1.messages import (
    CreateWorkspaceResponse,
    DeleteWorkspaceResponse,
    GetWorkspaceResponse,
    UpdateWorkspaceResponse,
    WorkspaceDetails,
)


class WorkspaceOperations(Caller):
    """Creates and deletes workspaces. `with_options(workspace=name)` returns a client of one."""

    @operation
    def create_workspace(
        self,
        name: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        clone_of: str | None = None,
        ttl_sec: int | None = None,
        idle_timeout_sec: int | None = None,
        max_bytes: int | None = None,
        max_files: int | None = None,
    ) -> Steps[WorkspaceDetails]:
        """Creates a workspace: empty, or with a copy of the files of `clone_of`.

        Without `name`, the daemon chooses one. The daemon deletes the workspace after `ttl_sec`,
        or `idle_timeout_sec` after its last call. Its files take at most `max_bytes` of disk
        space, and are at most `max_files`.

        Raises `WorkspaceExists`, `WorkspacesDisabled` (the operator allows none),
        `ResourceExhausted` (too many) or `NoSpace` (the copied files exceed the bounds).
        """
        return self._workspace(
            "CreateWorkspace",
            CreateWorkspaceResponse,
            name=name,
            labels=labels,
            clone_of=clone_of,
            ttl_sec=ttl_sec,
            idle_timeout_sec=idle_timeout_sec,
            max_bytes=max_bytes,
            max_files=max_files,
        )

    @operation
    def get_workspace(self, name: str) -> Steps[WorkspaceDetails]:
        """Returns a workspace. Raises `UnknownWorkspace`."""
        return self._workspace("GetWorkspace", GetWorkspaceResponse, name=name)

    @operation
    def list_workspaces(
        self, *, labels: Mapping[str, str] | None = None
    ) -> Steps[list[WorkspaceDetails]]:
        """Lists the workspaces of the caller that have all `labels`, sorted by name."""
        return self._pages(
            "ListWorkspaces", WorkspaceDetails, "workspaces", labels=labels, page_size=1000
        )

    @operation
    def update_workspace(
        self,
        name: str,
        *,
        ttl_sec: int | None = None,
        idle_timeout_sec: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Steps[WorkspaceDetails]:
        """Changes when a workspace expires, or replaces its labels. 0 seconds remove a limit.

        Raises `UnknownWorkspace` or `Forbidden` (a workspace of the configuration).
        """
        return self._workspace(
            "UpdateWorkspace",
            UpdateWorkspaceResponse,
            name=name,
            ttl_sec=ttl_sec,
            idle_timeout_sec=idle_timeout_sec,
            labels=None if labels is None else {"labels": labels},
        )

    @operation
    def delete_workspace(self, name: str) -> Steps[None]:
        """Ends the commands of a workspace, and deletes it with its files and records.

        Raises `UnknownWorkspace` or `Forbidden` (a workspace of the configuration).
        """
        yield from self._call("DeleteWorkspace", DeleteWorkspaceResponse, name=name)

    def _workspace(self, rpc: str, kind: type[Any], **values: object) -> Steps[WorkspaceDetails]:
        response = yield from self._call(rpc, kind, **values)
        workspace: WorkspaceDetails = response.workspace
        return workspace
