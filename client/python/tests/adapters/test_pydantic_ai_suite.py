"""Pydantic AI's own suite for workspaces: `pydantic_ai.workspaces.conformance`, unmodified."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from pydantic_ai.workspaces import WorkspaceBackend, WorkspaceRef
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

import jig
from jig.adapters.pydantic_ai import JigWorkspaceBackend

# docs/adapters/pydantic-ai.md has the same table.
FAILURES = {
    "test_a_backend_attached_by_ref_reaches_a_detached_process": (
        "all processes of a command end with it"
    ),
}


class TestWorkspace(WorkspaceBackendSuite):
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture(autouse=True)
    def known_failures(self, request: pytest.FixtureRequest) -> None:
        if reason := FAILURES.get(request.node.originalname):
            # It waits for 90 seconds before it fails.
            request.applymarker(pytest.mark.xfail(reason=reason, run=False))

    @pytest.fixture
    async def of_daemon(self, address: str) -> AsyncIterator[jig.AsyncClient]:
        async with jig.AsyncClient(address) as client:
            yield client

    @pytest.fixture
    def backend(self, address: str, of_daemon: jig.AsyncClient) -> Iterator[WorkspaceBackend]:
        backend = JigWorkspaceBackend(of_daemon)
        yield backend
        if backend.ref is not None:
            # The event loop of the test is closed.
            with jig.Client(address) as client:
                client.delete_workspace(backend.ref.id)

    @pytest.fixture
    def fresh_backend(self, of_daemon: jig.AsyncClient) -> Callable[[], WorkspaceBackend]:
        return lambda: JigWorkspaceBackend(of_daemon)

    @pytest.fixture
    def attach_backend(
        self, of_daemon: jig.AsyncClient
    ) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        return lambda ref: JigWorkspaceBackend(of_daemon, ref)

    @pytest.fixture
    def destroy_environment(
        self, of_daemon: jig.AsyncClient
    ) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        async def destroy(backend: WorkspaceBackend) -> None:
            assert backend.ref is not None
            await of_daemon.delete_workspace(backend.ref.id)

        return destroy
