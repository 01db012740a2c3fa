"""Build hook: generates `jig/v1` before a wheel is built."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class GenerateHook(BuildHookInterface[Any]):
    """Runs generate.py with the Python of the build."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        subprocess.run([sys.executable, Path(self.root) / "generate.py"], check=True)
