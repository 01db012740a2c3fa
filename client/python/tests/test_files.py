"""Files: reading, changing, searching and copying."""

import io
import subprocess
from pathlib import Path
from typing import BinaryIO, cast

import pytest

import jig
from jig.v1 import reasons

PATCH = """--- a/{0}
+++ b/{0}
@@ -1,2 +1,2 @@
 one
-two
+three
"""


@pytest.fixture
def root(request: pytest.FixtureRequest, client: jig.Client) -> str:
    """An empty directory of the workspace."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    client.create_directory(name)
    return name


def test_read_and_write(client: jig.Client, root: str) -> None:
    path = f"{root}/new/a.txt"
    written = client.write_file(path, "one\ntwo\nthree\n", mode="CREATE_NEW", file_mode=0o755)
    assert written.created and written.bytes_written == 14
    read = client.read_file(path, start_line=2, end_line=2)
    assert (read.content, read.total_lines, read.sha256) == ("two\n", 3, written.sha256)
    assert client.stat(path).mode == 0o755

    with pytest.raises(FileExistsError):
        client.write_file(path, "", mode="CREATE_NEW")
    with pytest.raises(reasons.StaleFile):
        client.write_file(path, "", expected_sha256="0" * 64)
    with pytest.raises(reasons.LineRangeInvalid):
        client.read_file(path, start_line=10)
    client.write_file(path, b"\xff\x00")
    with pytest.raises(reasons.BinaryFile):
        client.read_file(path)
    assert client.read_file(path, encoding="BASE64").content == "/wA="
    with pytest.raises(ValueError, match="OVERWRITE, CREATE_NEW, APPEND"):
        client.write_file(path, "", mode="TRUNCATE")  # type: ignore[arg-type] # pyright: ignore
    with pytest.raises(PermissionError):
        client.read_file("../etc/passwd")


def test_edit_and_patch(client: jig.Client, root: str) -> None:
    path = f"{root}/b.txt"
    client.write_file(path, "one\ntwo\n")
    edit = jig.Edit("one", "1", occurrence="ALL")
    assert "+1" in client.edit_file(path, [edit], dry_run=True).diff
    with pytest.raises(reasons.StringNotFound):
        client.edit_file(path, [jig.Edit("absent", "x")])
    patched = client.apply_patch(PATCH.format(path))
    assert [(file.path, file.change) for file in patched.changed_files] == [(path, "MODIFIED")]
    assert client.read_bytes(path) == b"one\nthree\n"
    with pytest.raises(reasons.PatchHunkFail):
        client.apply_patch(PATCH.format(path))


def test_lists(client: jig.Client, root: str) -> None:
    for name in ("a.py", "b.txt", "sub/c.py"):
        client.write_file(f"{root}/{name}", "text\n")
    assert client.list_files(root).files == ["a.py", "b.txt", "sub/c.py"]
    assert client.list_files(root, glob="*.py", max_depth=1).files == ["a.py"]
    limited = client.list_files(root, max_results=2)
    assert (limited.files, limited.truncated) == (["a.py", "b.txt"], True)
    listing = client.list_dir(root)
    assert [(entry.name, entry.type) for entry in listing.entries] == [
        ("a.py", "FILE"),
        ("b.txt", "FILE"),
        ("sub", "DIRECTORY"),
    ]
    modify_time = listing.entries[0].modify_time
    assert modify_time is not None and modify_time.tzinfo is not None
    with pytest.raises(FileNotFoundError):
        client.list_dir("no-such-directory")


def test_long_lists_have_all_pages(client: jig.Client, root: str, workspace: Path) -> None:
    first = workspace / root / "00000"
    first.touch()
    for number in range(1, 10_002):
        (workspace / root / f"{number:05}").hardlink_to(first)
    assert len(client.list_files(root).files) == 10_002
    assert len(client.list_files(root, max_results=10_001).files) == 10_001
    assert len(client.list_dir(root).entries) == 10_002
    assert client.delete_path(root, recursive=True).deleted_count == 10_003


def test_search(client: jig.Client, root: str) -> None:
    client.write_file(f"{root}/a.txt", "x\nneedle 1\ny\n")
    client.write_file(f"{root}/b.md", "needle 2\n")
    found = client.search("needle \\d", is_regex=True, path=root, globs=["*.txt"], context_lines=1)
    (match,) = found.matches
    assert (match.file, match.line, match.context_before) == (f"{root}/a.txt", 2, ["x"])
    with pytest.raises(reasons.InvalidRegex):
        client.search("(", is_regex=True)


def test_move_delete_and_exists(client: jig.Client, root: str) -> None:
    client.write_file(f"{root}/a", "")
    client.move_path(f"{root}/a", f"{root}/b")
    assert not client.exists(f"{root}/a") and client.exists(f"{root}/b")
    assert not client.exists(f"{root}/b/c")
    assert client.stat(root).type == "DIRECTORY"
    with pytest.raises(reasons.DirectoryNotEmpty):
        client.delete_path(root)
    with pytest.raises(PermissionError):
        client.exists("../x")


def test_notebooks(client: jig.Client, root: str) -> None:
    path = f"{root}/n.ipynb"
    client.write_file(path, '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    client.edit_notebook(path, mode="INSERT", cell_type="CODE", source="1 + 1")
    (cell,) = client.read_notebook(path).cells
    assert (cell.type, cell.source, cell.execution_count) == ("CODE", "1 + 1", None)


def test_fetch_url_needs_allowed_hosts(client: jig.Client) -> None:
    with pytest.raises((reasons.UnknownTool, reasons.EgressDenied, reasons.ToolDisabled)):
        client.fetch_url("https://example.org/")


def test_copies_of_any_size(client: jig.Client, root: str, tmp_path: Path) -> None:
    content = bytes(range(256)) * 20_000
    source = tmp_path / "source"
    source.write_bytes(content)
    path = f"{root}/copy"
    uploaded = client.upload(source, path, file_mode=0o755)
    assert uploaded.created and uploaded.received_bytes == len(content)
    assert client.read_bytes(path) == content
    assert client.read_bytes(path, offset=5, limit=700_000) == content[5:700_005]
    chunks = list(client.read_chunks(path, offset=1))
    assert b"".join(chunks) == content[1:] and len(chunks) > 1

    downloaded = client.download(path, tmp_path / "back")
    assert (downloaded.size_bytes, downloaded.data) == (len(content), b"")
    assert (tmp_path / "back").read_bytes() == content
    assert (tmp_path / "back").stat().st_mode & 0o100
    buffer = io.BytesIO()
    client.download(path, buffer)
    assert buffer.getvalue() == content

    file = io.BytesIO(b"skip" + content)
    file.seek(4)
    assert client.upload(file, path).sha256 == uploaded.sha256
    with subprocess.Popen(["cat", source], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert client.upload(cast(BinaryIO, process.stdout), path).sha256 == uploaded.sha256
    client.upload(b"", path)
    assert client.read_bytes(path) == b""


def test_failed_copies_leave_nothing(client: jig.Client, tmp_path: Path) -> None:
    with pytest.raises(reasons.FileNotFound):
        client.download("no-such-file", tmp_path / "target")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        client.upload(tmp_path / "no-such-file", "x")
    with pytest.raises(reasons.PathEscape):
        client.upload(b"x", "../x")

    class Broken(io.BytesIO):
        def seek(self, offset: int, whence: int = 0, /) -> int:
            raise OSError("the source broke")

    with pytest.raises(OSError, match="the source broke"):
        client.upload(Broken(b"x"), "x")
    assert not client.exists("x")
