"""Operations that copy directories into and out of the workspace, as tar archives."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from google.protobuf.message import Message

from jig.caller import Attempts, Caller
from jig.connection import PathText
from jig.contract import METHODS, decode, encode
from jig.errors import CallError
from jig.steps import Open, Read, Sleep, Steps, operation
from jig.transfer import CHUNK_BYTES, open_source
from jig.v1.messages import (
    DownloadTreeSummary,
    TreeProblem,
    TreeProblemKind,
    UploadTreeResponse,
    WriteMode,
)
from jig.v1.reasons import ChecksumMismatch, InvalidArchive
from jig.v1.transfer_service_pb2 import UploadTreeRequest, UploadTreeStart

# Problems beyond these are counted only, as the daemon does.
MAX_PROBLEMS = 1000


@dataclass(frozen=True)
class UploadedTree(UploadTreeResponse):
    """Response of `upload_tree`."""

    skipped_entries: int = 0
    """Number of entries of a local directory that were left out."""
    problems: list[TreeProblem] = field(default_factory=lambda: [])
    """The first 1000 of these entries."""


class TreeOperations(Caller):
    """Copies directories. After a lost connection, a copy starts again."""

    @operation
    def upload_tree(
        self, source: PathText | bytes | BinaryIO, path: str, *, mode: WriteMode | None = None
    ) -> Steps[UploadedTree]:
        """Copies a directory into a directory of the workspace, which is created if it is missing.

        `source` is the path of a local directory: its directories, regular files and links are
        copied. Or it is a tar archive without compression, as bytes or a binary file. One that
        cannot seek is copied to a temporary file first. `mode` is `OVERWRITE` (default) or
        `CREATE_NEW`.

        The returned `problems` name entries of a local directory that were left out: links that
        lead out of it, such as `bin/python` of a virtual environment, names that are not UTF-8, and
        sockets, FIFOs and devices.

        After an error, the members before the rejected one are in place. The metadata `member`
        names it.

        Raises `InvalidArchive`, `ArchiveTooLarge`, `PathEscape` (also of a link), `FileExists`,
        `NotAFile`, `SymlinkBlocked`, `PolicyDenied` or `NoSpace`.
        """
        with contextlib.ExitStack() as resources:
            skipped = SkippedEntries()
            if isinstance(source, (str, os.PathLike)):
                os.scandir(source).close()
                chunks = partial(archive_chunks, source, skipped)
            else:
                file = yield from open_source(source, resources)
                chunks = partial(file_chunks, file, file.tell())
            start = encode(UploadTreeStart, {"path": path, "mode": mode})
            upload = TreeUpload(cast(UploadTreeStart, start), chunks)
            method = METHODS["UploadTree"]
            attempts = Attempts(self._options, method)
            try:
                message = yield from self._attempt(attempts, method, upload.requests)
            except CallError as error:
                if upload.error is not None:
                    raise upload.error from error
                raise
            fields = vars(decode(UploadTreeResponse, message))
            return UploadedTree(
                **fields, skipped_entries=skipped.count, problems=list(skipped.problems)
            )

    @operation
    def download_tree(
        self,
        path: str,
        destination: PathText | BinaryIO,
        *,
        exclude: Sequence[str] = (),
        max_file_bytes: int | None = None,
    ) -> Steps[DownloadTreeSummary]:
        """Copies a directory of the workspace to a local path, or as a tar archive into a file.

        `exclude` has globs of paths to leave out, and larger files than `max_file_bytes` are left
        out. The archive arrives in a temporary file first. A local directory is created if it is
        missing, and existing files are replaced. Nothing is written outside of it.

        The returned `problems` name entries that are not in the archive, and files that changed
        while they were read.

        Raises `DirectoryNotFound`, `NotADirectory`, `InvalidGlob`, `ChecksumMismatch`, or
        `tarfile.TarError` if a member leads out of the directory.
        """
        method = METHODS["DownloadTree"]
        values = {"path": path, "exclude": exclude, "max_file_bytes": max_file_bytes}
        request = encode(method.request, values)
        attempts = Attempts(self._options, method)
        with tempfile.TemporaryFile() as spool:
            while True:
                try:
                    opening = Open(
                        method, request, attempts.metadata(method), attempts.remaining_sec()
                    )
                    summary = yield from receive_archive(opening, cast(BinaryIO, spool))
                    break
                except CallError as error:
                    delay = attempts.next_delay(error, method)
                yield delay

            spool.seek(0)
            if isinstance(destination, (str, os.PathLike)):
                skipped = SkippedEntries()
                yield from extract(cast(BinaryIO, spool), Path(destination), skipped)
                summary = replace(
                    summary,
                    skipped_entries=summary.skipped_entries + skipped.count,
                    problems=[*summary.problems, *skipped.problems][:MAX_PROBLEMS],
                )
            else:
                shutil.copyfileobj(spool, destination)
        return summary


class SkippedEntries:
    """Entries that were left out of a copy."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.count = 0
        self.problems: list[TreeProblem] = []

    def add(self, path: str, kind: TreeProblemKind) -> None:
        self.count += 1
        if len(self.problems) < MAX_PROBLEMS:
            path = os.fsencode(path).decode(errors="replace")
            self.problems.append(TreeProblem(path=path, kind=kind))


class TreeUpload:
    """The messages of an upload. gRPC reads them in a thread of its own."""

    def __init__(self, start: UploadTreeStart, chunks: Callable[[], Iterator[bytes]]) -> None:
        self.start = start
        self.chunks = chunks
        self.error: Exception | None = None
        self.lock = threading.Lock()
        self.reader = 0

    def requests(self) -> Iterator[Message]:
        """The messages of the next attempt. Those of an earlier attempt end."""
        with self.lock:
            self.reader += 1
            return self.read(self.reader)

    def read(self, reader: int) -> Iterator[Message]:
        yield UploadTreeRequest(start=self.start)
        chunks = self.chunks()
        while True:
            try:
                with self.lock:
                    data = next(chunks, b"") if reader == self.reader else b""
            except Exception as error:
                # Raised here, it would cancel the task of an `AsyncClient`.
                self.error = error
                return
            if not data:
                return
            yield UploadTreeRequest(data=data)


def file_chunks(file: BinaryIO, begin: int) -> Iterator[bytes]:
    """The bytes of a file from `begin` on. Others can move its position."""
    position = begin
    while True:
        file.seek(position)
        data = file.read(CHUNK_BYTES)
        if not data:
            return
        position += len(data)
        yield data


def archive_chunks(top: PathText, skipped: SkippedEntries) -> Iterator[bytes]:
    """A tar archive of the directory `top`, in the order of names. An attempt begins a new one."""
    skipped.clear()
    buffer = bytearray()
    for part in archive_parts(os.fspath(top), skipped):
        buffer += part
        if len(buffer) >= CHUNK_BYTES:
            yield bytes(buffer)
            buffer.clear()
    yield bytes(buffer)


def archive_parts(top: str, skipped: SkippedEntries) -> Iterator[bytes]:
    # It describes files, and recognizes other names of the same file. It writes nothing.
    with tarfile.open(os.devnull, "w") as describer:
        pending = [(entry.path, entry.name) for entry in sorted_entries(top)]
        while pending:
            path, name = pending.pop()
            # None for sockets.
            member = describer.gettarinfo(path, name) if is_utf8(name) else None
            if problem := problem_of(member, name):
                skipped.add(name, problem)
                continue
            assert member is not None
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            yield member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
            if member.isreg():
                yield from content_parts(path, member.size)
            elif member.isdir():
                pending += [(entry.path, f"{name}/{entry.name}") for entry in sorted_entries(path)]
    yield bytes(2 * tarfile.BLOCKSIZE)


def problem_of(member: tarfile.TarInfo | None, name: str) -> TreeProblemKind | None:
    """Why a daemon would not accept a member."""
    target = member.linkname if member is not None and member.issym() else ""
    if not is_utf8(name + target):
        return "NOT_UTF8"
    kinds = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE)
    if member is None or member.type not in kinds:
        return "SPECIAL"
    # `..` is accepted only where it leads up from a directory, not from the target of a link.
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    leads_out = target.startswith("/") or up > name.count("/") or ".." in parts[up:]
    return "ESCAPES" if leads_out else None


def is_utf8(text: str) -> bool:
    # The system's names have other bytes as surrogates.
    return text.isprintable() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def sorted_entries(directory: str) -> list[os.DirEntry[str]]:
    """The entries of a directory, the first of them last."""
    with os.scandir(directory) as entries:
        return sorted(entries, key=lambda entry: entry.name, reverse=True)


def content_parts(path: str, size: int) -> Iterator[bytes]:
    remaining = size
    with open(path, "rb") as file:
        while remaining > 0:
            data = file.read(min(CHUNK_BYTES, remaining))
            if not data:
                raise OSError(f"{path} became shorter while it was read: upload it again")
            remaining -= len(data)
            yield data
    yield bytes(-size % tarfile.BLOCKSIZE)


def receive_archive(opening: Open, file: BinaryIO) -> Steps[DownloadTreeSummary]:
    """Receives an archive from its start into a file, and checks that it is whole."""
    file.seek(0)
    file.truncate()
    digest = hashlib.sha256()
    last: Any = None
    call: Any = None
    try:
        call = yield opening
        while (message := (yield Read(call))) is not None:
            file.write(message.data)
            digest.update(message.data)
            last = message
    finally:
        if call is not None:
            call.cancel()
    if last is None or last.summary.sha256 != digest.hexdigest():
        raise ChecksumMismatch("the archive arrived damaged: start again")
    return decode(DownloadTreeSummary, last.summary)


def extract(file: BinaryIO, destination: Path, skipped: SkippedEntries) -> Steps[None]:
    """Extracts an archive. The daemon is not trusted, and commands have made links of any target.

    Links come last, so that no file is written through a link of the archive.
    """
    destination.mkdir(parents=True, exist_ok=True)
    links: dict[Path, tarfile.TarInfo] = {}
    try:
        with tarfile.open(mode="r:", fileobj=file) as archive:
            for member in archive:
                path = Path(member.name)
                if path.is_absolute() or ".." in path.parts:
                    raise InvalidArchive(f"{member.name!r} leads out of the directory")
                if member.issym():
                    links[path] = member
                elif member.isreg() or member.isdir():
                    extract_member(archive, member, destination, skipped)
                else:
                    raise InvalidArchive(f"{member.name!r} is neither a file, directory nor link")
                yield Sleep(0)
            for path, member in links.items():
                if not links.keys().isdisjoint(path.parents):
                    raise InvalidArchive(f"{member.name!r} passes through another link")
                extract_member(archive, member, destination, skipped)
    except tarfile.TarError as error:
        raise InvalidArchive(f"the archive cannot be extracted: {error}") from error
    # The target of a link can pass through a link that was extracted after it.
    top = os.path.realpath(destination)
    for path, member in links.items():
        link = destination / path
        if link.is_symlink() and not Path(os.path.realpath(link)).is_relative_to(top):
            link.unlink()
            skipped.add(member.name, "ESCAPES")


def extract_member(
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    destination: Path,
    skipped: SkippedEntries,
) -> None:
    path = destination / member.name
    parents = [parent for parent in path.parents if parent.is_relative_to(destination)]
    through = [path, *parents[:-1]] if member.isdir() else parents[:-1]
    if any(parent.is_symlink() for parent in through):
        skipped.add(member.name, "ESCAPES")
        return
    if path.is_symlink():
        path.unlink()
    try:
        archive.extract(member, destination, filter="data")
    except tarfile.FilterError:
        skipped.add(member.name, "ESCAPES")
