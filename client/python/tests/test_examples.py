"""The examples and the programs of README.md run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import conftest
import pytest


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which `jigd` is in PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    program = shutil.which(conftest.PROGRAM)
    assert program is not None
    (programs / "jigd").symlink_to(Path(program).resolve())
    (tmp_path / "project").mkdir()
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}


def run(*command: str | Path, environment: dict[str, str], cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *command], env=environment, cwd=cwd, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_agent(environment: dict[str, str], tmp_path: Path) -> None:
    output = run(
        conftest.SOURCE / "examples" / "agent.py", "project", environment=environment, cwd=tmp_path
    )
    assert output.splitlines()[:2] == ["write_file: ok", "run: ok"]
    assert "hello from the sandbox" in output
    assert (tmp_path / "project" / "greet.sh").exists()


def test_approvals(environment: dict[str, str], tmp_path: Path) -> None:
    example = conftest.SOURCE / "examples" / "approvals.py"
    output = run(example, "project", environment=environment, cwd=tmp_path)
    lines = output.splitlines()
    assert sorted(lines[:2]) == ["ALLOW: echo 3 passed", "DENY: rm -rf tests"]
    assert "3 passed" in lines[2] and "approval_denied" in lines[3]


def test_programs_of_the_readme(environment: dict[str, str], tmp_path: Path) -> None:
    text = (conftest.SOURCE / "README.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    assert len(programs) >= 2
    for program in programs:
        run("-c", program, environment=environment, cwd=tmp_path)
