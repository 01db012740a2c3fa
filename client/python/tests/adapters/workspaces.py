"""The workspaces that adapters create, and the configuration of the daemon that allows them."""

from __future__ import annotations

from pathlib import Path

import jig

# Debian's program has another name. Suites call it as images of containers have it.
CONFIG = """
[sandbox]
path = ["/python-name"]
bind_ro = ["{directory}/bin:/python-name"]

[[workspaces]]
name = "first"
path = "{directory}/first"

[workspaces_on_demand]
directory = "{directory}/on-demand"
home = "persistent"
tmp = "persistent"
"""


class Workspaces:
    """The workspaces of a daemon."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = ""

    def config(self) -> str:
        for name in ("bin", "first", "on-demand"):
            (self.directory / name).mkdir()
        (self.directory / "bin" / "python").symlink_to("/usr/bin/python3")
        return CONFIG.format(directory=self.directory)

    @property
    def used(self) -> set[str]:
        """Names of the created workspaces that are not deleted."""
        with jig.Client(self.address) as client:
            return {details.name for details in client.list_workspaces() if details.on_demand}
