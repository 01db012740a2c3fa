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
from jig.v1.messages import DownloadTreeSummary, UploadTreeResponse, WriteMode
from jig.v1.reasons import ChecksumMismatch
from jig.v1.transfer_service_pb2 import UploadTreeRequest, UploadTreeStart


class TreeOperations(Caller):
    """Copies directories. After a lost connection, a copy starts again."""

    @operation
    def upload_tree(
        self, source: PathText | bytes | BinaryIO, path: str, *, mode: WriteMode | None = None
    ) -> Steps[UploadTreeResponse]:
        """Copies a directory into a directory of the workspace, which is created if it is missing.

        `source` is the path of a local directory: its directories, regular files and links are
        copied. Or it is a tar archive without compression, as bytes or a binary file. One that
        cannot seek is copied to a temporary file first. `mode` is `OVERWRITE` (default) or
        `CREATE_NEW`.

        After an error, the members before the rejected one are in place. The metadata `member`
        names it.

        Raises `InvalidArchive`, `ArchiveTooLarge`, `PathEscape` (also of a link), `FileExists`,
        `NotAFile`, `SymlinkBlocked`, `PolicyDenied` or `NoSpace`.
        """
        with contextlib.ExitStack() as resources:
            if isinstance(source, (str, os.PathLike)):
                os.scandir(source).close()
                chunks = partial(archive_chunks, source)
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
            return decode(UploadTreeResponse, message)

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
                yield from extract(cast(BinaryIO, spool), Path(destination))
            else:
                shutil.copyfileobj(spool, destination)
        return summary


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


def archive_chunks(top: PathText) -> Iterator[bytes]:
    """A tar archive of the directory `top`, in the order of names."""
    buffer = bytearray()
    for part in archive_parts(os.fspath(top)):
        buffer += part
        if len(buffer) >= CHUNK_BYTES:
            yield bytes(buffer)
            buffer.clear()
    yield bytes(buffer)


def archive_parts(top: str) -> Iterator[bytes]:
    # It describes files, and recognizes other names of the same file. It writes nothing.
    with tarfile.open(os.devnull, "w") as describer:
        pending = [(entry.path, entry.name) for entry in sorted_entries(top)]
        while pending:
            path, name = pending.pop()
            member = describer.gettarinfo(path, name)
            # None for sockets.
            kinds = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE)
            if cast(Any, member) is None or member.type not in kinds:
                continue
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            yield member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
            if member.isreg():
                yield from content_parts(path, member.size)
            elif member.isdir():
                pending += [(entry.path, f"{name}/{entry.name}") for entry in sorted_entries(path)]
    yield bytes(2 * tarfile.BLOCKSIZE)


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


def extract(file: BinaryIO, destination: Path) -> Steps[None]:
    """Extracts an archive. The daemon is not trusted: the filter of Python rejects what leads out.

    Links come last, so that no file is written through a link of the archive.
    """
    destination.mkdir(parents=True, exist_ok=True)
    links: dict[Path, tarfile.TarInfo] = {}
    with tarfile.open(mode="r:", fileobj=file) as archive:
        for member in archive:
            path = Path(member.name)
            if path.is_absolute() or ".." in path.parts:
                raise tarfile.TarError(f"{member.name!r} leads out of the directory")
            if member.issym():
                links[path] = member
            elif member.isreg() or member.isdir():
                archive.extract(member, destination, filter="data")
            else:
                raise tarfile.TarError(f"{member.name!r} is neither a file, directory nor link")
            yield Sleep(0)
        for path, member in links.items():
            if not links.keys().isdisjoint(path.parents):
                raise tarfile.TarError(f"{member.name!r} passes through another link")
            archive.extract(member, destination, filter="data")
