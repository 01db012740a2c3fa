"""Directories: copies into and out of the workspace, and hostile archives."""

import contextlib
import hashlib
import io
import os
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, cast

import conftest
import grpc
import pytest

import jig
from jig.v1 import reasons
from jig.v1.transfer_service_pb2 import (
    DownloadTreeRequest,
    DownloadTreeResponse,
    DownloadTreeSummary,
)


@pytest.fixture
def root(request: pytest.FixtureRequest) -> str:
    """A name for a directory of the workspace."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


def make_tree(top: Path) -> None:
    (top / "d" / "empty").mkdir(parents=True)
    (top / "a").write_text("hello")
    (top / "d" / "é\n").write_bytes(os.urandom(700_000))
    (top / "d" / "run").write_text("#!/bin/sh\n")
    (top / "d" / "run").chmod(0o755)
    (top / "d" / ("n" * 200)).write_text("long")
    (top / "d" / "up").symlink_to("../a")
    (top / "dangling").symlink_to("d/none")
    os.link(top / "a", top / "z")
    os.mkfifo(top / "fifo")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(os.path.relpath(top / "socket"))


def describe(top: Path) -> dict[str, tuple[str, object]]:
    """Kinds, and contents or targets, without what an archive leaves out."""
    found: dict[str, tuple[str, object]] = {}
    for path in top.rglob("*"):
        name = str(path.relative_to(top))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_file():
            found[name] = ("file", (path.read_bytes(), path.stat().st_mode & 0o100))
        elif path.is_dir():
            found[name] = ("directory", None)
    return found


def test_trees_survive_both_directions(
    client: jig.Client, root: str, workspace: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    make_tree(source)
    uploaded = client.upload_tree(source, root)
    counts = (uploaded.files, uploaded.directories, uploaded.symlinks, uploaded.hard_links)
    assert counts == (4, 2, 2, 1)
    assert describe(workspace / root) == describe(source)
    assert (workspace / root / "a").samefile(workspace / root / "z")
    modified = (workspace / root / "a").stat().st_mtime_ns - (source / "a").stat().st_mtime_ns
    assert abs(modified) < 1_000_000

    downloaded = client.download_tree(root, tmp_path / "new" / "back")
    assert (downloaded.files, downloaded.symlinks, downloaded.problems) == (5, 2, [])
    assert describe(tmp_path / "new" / "back") == describe(source)
    # Again, over what exists.
    client.download_tree(root, tmp_path / "new" / "back")
    assert describe(tmp_path / "new" / "back") == describe(source)

    buffer = io.BytesIO(b"kept")
    buffer.seek(4)
    client.download_tree(root, buffer, exclude=["d"], max_file_bytes=4)
    assert buffer.getvalue().startswith(b"kept")
    buffer.seek(4)
    with tarfile.open(fileobj=io.BytesIO(buffer.read())) as archive:
        assert archive.getnames() == ["dangling"]
    with pytest.raises(reasons.DirectoryNotFound):
        client.download_tree("none", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_links_that_lead_out_are_left_out(
    client: jig.Client, root: str, workspace: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    (source / "bin").mkdir(parents=True)
    for name, target in {
        "bin/python": "/usr/bin/python3",
        "bin/up": "../../out",
        "bin/tool": "../lib/tool",
        "bin/through": "tool/../x",
        "up": "..",
        "own": "bin",
    }.items():
        (source / name).symlink_to(target)
    (source / "z").write_text("last")
    os.mkfifo(source / "fifo")
    (source / os.fsdecode(b"bad\xff")).write_text("not UTF-8")
    (source / "text").symlink_to(os.fsdecode(b"\xff"))
    uploaded = client.upload_tree(source, root)
    assert {(problem.path, problem.kind) for problem in uploaded.problems} == {
        ("bin/python", "ESCAPES"),
        ("bin/through", "ESCAPES"),
        ("bin/up", "ESCAPES"),
        ("up", "ESCAPES"),
        ("fifo", "SPECIAL"),
        ("bad\ufffd", "NOT_UTF8"),
        ("text", "NOT_UTF8"),
    }
    assert (uploaded.skipped_entries, uploaded.files, uploaded.symlinks) == (7, 1, 2)
    assert describe(workspace / root).keys() == {"bin", "bin/tool", "own", "z"}

    # What a command makes, not an upload.
    (workspace / root / "passwd").symlink_to("/etc/passwd")
    (workspace / root / "bin" / "python").symlink_to("/usr/bin/python3")
    (workspace / root / "a").symlink_to("dot/../../x")
    (workspace / root / "dot").symlink_to(".")
    back = tmp_path / "back"
    for _ in range(2):
        downloaded = client.download_tree(root, back)
        assert {(problem.path, problem.kind) for problem in downloaded.problems} == {
            ("passwd", "ESCAPES"),
            ("bin/python", "ESCAPES"),
            ("a", "ESCAPES"),
        }
        assert (downloaded.skipped_entries, downloaded.symlinks) == (3, 6)
        assert describe(back).keys() == {"bin", "bin/tool", "own", "z", "dot"}


def test_downloads_write_through_no_local_link(
    client: jig.Client, root: str, workspace: Path, tmp_path: Path
) -> None:
    (workspace / root / "d" / "e").mkdir(parents=True)
    (workspace / root / "d" / "e" / "f").write_text("new")
    (workspace / root / "file").write_text("new")
    (workspace / root / "link").symlink_to("file")
    target, kept = tmp_path / "target", tmp_path / "target" / "kept"
    kept.mkdir(parents=True)
    (kept / "file").write_text("old")
    (target / "d").symlink_to("kept")
    (target / "file").symlink_to("kept/file")
    (target / "link").symlink_to("/etc/passwd")
    downloaded = client.download_tree(root, target)
    assert [problem.path for problem in downloaded.problems] == ["d", "d/e", "d/e/f"]
    assert describe(target) == {
        "d": ("link", "kept"),
        "file": ("file", (b"new", 0)),
        "link": ("link", "file"),
        "kept": ("directory", None),
        "kept/file": ("file", (b"old", 0)),
    }


def test_archives_are_uploaded(client: jig.Client, root: str, workspace: Path) -> None:
    archive = make_archive(("x", tarfile.REGTYPE, ""), ("y", tarfile.SYMTYPE, "x"))
    assert client.upload_tree(archive, root).symlinks == 1
    assert describe(workspace / root).keys() == {"x", "y"}
    file = io.BytesIO(b"skip" + archive)
    file.seek(4)
    assert client.upload_tree(file, f"{root}/file").files == 1
    uploaded = workspace / root / "file"
    with subprocess.Popen(["tar", "-cC", uploaded, "."], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        client.upload_tree(cast(BinaryIO, process.stdout), f"{root}/pipe")
    assert describe(workspace / root / "pipe") == describe(uploaded)


def test_failed_uploads_name_the_member(
    client: jig.Client, root: str, workspace: Path, tmp_path: Path
) -> None:
    hostile = make_archive(("x", tarfile.REGTYPE, ""), ("l", tarfile.SYMTYPE, "../../out"))
    with pytest.raises(reasons.PathEscape) as failure:
        client.upload_tree(hostile, root)
    assert failure.value.metadata["member"] == "l"
    assert failure.value.metadata["extracted_members"] == "1"
    with pytest.raises(reasons.InvalidArchive):
        client.upload_tree(b"no archive" * 100, root)
    with pytest.raises(reasons.FileExists):
        client.upload_tree(make_archive(("x", tarfile.REGTYPE, "")), root, mode="CREATE_NEW")
    with pytest.raises(FileNotFoundError):
        client.upload_tree(tmp_path / "none", f"{root}/none")
    assert not (workspace / root / "none").exists()

    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError("the source broke")

    with pytest.raises(OSError, match="the source broke"):
        client.upload_tree(Broken(), root)


def make_archive(*members: tuple[str, bytes, str]) -> bytes:
    """An archive of empty members with these names, types and targets."""
    buffer = io.BytesIO()
    with tarfile.open(mode="w", fileobj=buffer) as archive:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, target, 0o6777
            archive.addfile(member)
    return buffer.getvalue()


class HostileDaemon:
    """A daemon that answers each download of a tree with the same messages."""

    def __init__(self) -> None:
        self.messages: list[DownloadTreeResponse] = []
        self.calls = 0
        self.server: Any = grpc.server(ThreadPoolExecutor(1))
        handler = grpc.unary_stream_rpc_method_handler(
            self.download_tree,
            request_deserializer=DownloadTreeRequest.FromString,
            response_serializer=DownloadTreeResponse.SerializeToString,
        )
        service = grpc.method_handlers_generic_handler(
            "jig.v1.TransferService", {"DownloadTree": handler}
        )
        self.server.add_generic_rpc_handlers((service,))
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def download_tree(self, request: DownloadTreeRequest, context: Any) -> Iterator[Any]:
        self.calls += 1
        yield from self.messages

    def serve(self, archive: bytes, sha256: str | None = None) -> None:
        summary = DownloadTreeSummary(sha256=sha256 or hashlib.sha256(archive).hexdigest())
        self.messages = [
            DownloadTreeResponse(data=archive),
            DownloadTreeResponse(summary=summary),
        ]


@pytest.fixture(params=["sync", "async"])
def hostile(request: pytest.FixtureRequest) -> Iterator[tuple[jig.Client, HostileDaemon]]:
    daemon = HostileDaemon()
    for client in conftest.connect(request.param, daemon.address):
        yield client, daemon
    daemon.server.stop(None)


def test_hostile_archives_write_nothing_outside(
    hostile: tuple[jig.Client, HostileDaemon], tmp_path: Path
) -> None:
    client, daemon = hostile
    file, link, directory = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    # A chain of links that is longer than the kernel resolves in one path.
    long = "d" * 240
    steps = "abcdefghijklmnop"
    chain = [
        (f"{'/'.join([long] * depth)}/{step}".lstrip("/"), kind, target)
        for depth, step in enumerate(steps)
        for step, kind, target in ((long, directory, ""), (step, link, long))
    ]
    chained = f"{'/'.join(steps)}/{'l' * 200}"
    left_out = [
        [("l", link, "../outside")],
        [("l", link, "../outside"), ("l", file, "")],
        [("l", link, str(outside))],
        [("l", link, str(outside)), ("l/x", file, "")],
    ]
    for members in (
        *left_out,
        [("../outside/x", file, "")],
        [("a/../../outside/x", file, "")],
        [(f"{outside}/x", file, "")],
        [("h", tarfile.LNKTYPE, "../outside/secret")],
        [("h", tarfile.LNKTYPE, str(outside / "secret")), ("h", file, "")],
        [("p", tarfile.FIFOTYPE, "")],
        [("c", tarfile.CHRTYPE, "")],
        [("b", link, "."), ("b/c", link, "x")],
        [*chain, (chained, link, "../" * len(steps)), ("out", link, f"{chained}/../outside")],
    ):
        daemon.serve(make_archive(*members))
        if members in left_out:
            summary = client.download_tree("t", target)
            problems = [(problem.path, problem.kind) for problem in summary.problems]
            assert (problems, summary.skipped_entries) == ([("l", "ESCAPES")], 1)
        else:
            with contextlib.suppress(OSError), pytest.raises(reasons.InvalidArchive):
                client.download_tree("t", target)
        assert os.listdir(outside) == ["secret"]
        assert sorted(os.listdir(tmp_path)) == ["outside", "target"]
        subprocess.run(["rm", "-r", target], check=True)
    assert (outside / "secret").read_text() == "secret"

    daemon.serve(make_archive(("x", file, ""), ("d", directory, "")))
    client.download_tree("t", target)
    assert (target / "x").stat().st_mode & 0o7022 == 0


def test_damaged_archives_are_not_extracted(
    hostile: tuple[jig.Client, HostileDaemon], tmp_path: Path
) -> None:
    client, daemon = hostile
    archive = make_archive(("x", tarfile.REGTYPE, ""))
    daemon.serve(archive, sha256="0" * 64)
    for messages in (daemon.messages, daemon.messages[:1], []):
        daemon.messages = messages
        with pytest.raises(reasons.ChecksumMismatch):
            client.download_tree("t", tmp_path / "target")
    daemon.serve(b"no archive")
    with pytest.raises(reasons.InvalidArchive):
        client.download_tree("t", tmp_path / "target")
    assert not (tmp_path / "target" / "x").exists()
