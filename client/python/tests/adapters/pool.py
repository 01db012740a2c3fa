"""Workspaces on demand, for a daemon that does not have `WorkspaceService`.

A daemon serves a fixed number of workspaces. `install` makes `create_workspace` and
`delete_workspace` of `AsyncClient` and `Client` take and return them.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

import jig
from jig.v1 import reasons
from jig.v1.messages import WorkspaceDetails

SIZE = 40
# Debian's program has another name. Suites call it as images of containers have it.
PYTHON = """
[sandbox]
path = ["/python-name"]
bind_ro = ["{path}:/python-name"]
"""
CONFIG = """
[[workspaces]]
name = "{name}"
path = "{path}"
"""


class Pool:
    """The workspaces of a daemon."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.free = [f"w{number}" for number in range(SIZE)]
        self.used: set[str] = set()

    def config(self) -> str:
        (self.directory / "bin").mkdir()
        (self.directory / "bin" / "python").symlink_to("/usr/bin/python3")
        parts = [PYTHON.format(path=self.directory / "bin")]
        for name in self.free:
            (self.directory / name).mkdir()
            parts.append(CONFIG.format(name=name, path=self.directory / name))
        return "".join(parts)

    def create(self, _: str | None = None, **__: Any) -> WorkspaceDetails:
        """Takes a workspace. Its name is that of the configuration."""
        name = self.free.pop(0)
        self.used.add(name)
        return WorkspaceDetails(name=name, mount_path="/workspace", on_demand=True)

    def get(self, name: str) -> WorkspaceDetails:
        if name not in self.used:
            raise reasons.UnknownWorkspace(f"no workspace {name}")
        return WorkspaceDetails(name=name, mount_path="/workspace", on_demand=True)

    def delete(self, name: str) -> None:
        self.get(name)
        self.used.remove(name)
        self.free.append(name)
        for path in (self.directory / name).iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for rpc in ("create", "get", "delete"):
            function = getattr(self, rpc)
            name = f"{rpc}_workspace"
            patch.setattr(jig.Client, name, blocking(function))
            patch.setattr(jig.AsyncClient, name, awaitable(function))


def blocking(function: Any) -> Any:
    def call(_: object, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def awaitable(function: Any) -> Any:
    async def call(_: object, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return function(*args, **kwargs)

    return call
