"""The programs of docs/adapters run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from workspaces import Workspaces

PACKAGE = Path(__file__).resolve().parents[2]
# The tests of a wheel have a copy of the pages beside it.
PAGES = next(
    path
    for path in (PACKAGE / "docs" / "adapters", PACKAGE.parents[1] / "docs" / "adapters")
    if path.is_dir()
)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
PROGRAMS = {
    f"{page.stem}-{number}": program
    for page in sorted(PAGES.glob("*.md"))
    for number, program in enumerate(BLOCK.findall(page.read_text()))
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, workspaces: Workspaces, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        exec(compile(PROGRAMS[name], name, "exec"), {"__name__": "__main__"})
    assert not workspaces.used


def test_each_adapter_has_a_page() -> None:
    modules = {path.stem for path in (PACKAGE / "jig" / "adapters").glob("[a-z]*.py")} - {
        "execution"
    }
    # Adapters of other packages have pages without programs in Python.
    pages = {path.stem for path in PAGES.glob("*.md") if BLOCK.search(path.read_text())}
    assert modules == {page.replace("-", "_") for page in pages}


def test_a_module_needs_only_its_framework() -> None:
    """The package itself imports no framework."""
    program = "import jig, sys; assert not {'pydantic', 'anyio'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
