"""Operations that copy files of any size into and out of the workspace."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from google.protobuf.message import Message

from jig.caller import Attempts, Caller, close_later
from jig.connection import PathText
from jig.contract import METHODS, decode, encode
from jig.errors import CallError
from jig.steps import Emit, Sleep, Steps, StreamSteps, Unary, next_item, operation, streaming
from jig.v1.messages import DownloadResponse, UploadResponse, WriteMode
from jig.v1.reasons import ChecksumMismatch, StaleFile
from jig.v1.transfer_service_pb2 import UploadChunk, UploadRequest, UploadStart

# The daemon keeps whole chunks of an upload that is interrupted.
CHUNK_BYTES = 128 << 10
# A longer source that cannot seek is copied to the disk.
MAX_SPOOL_BYTES = 8 << 20
# A longer upload cannot be resumed.
MAX_RESUMABLE_BYTES = 64 << 30


class TransferOperations(Caller):
    """Copies files. A copy continues after a lost connection."""

    @operation
    def upload(
        self,
        source: PathText | bytes | BinaryIO,
        path: str,
        *,
        mode: WriteMode | None = None,
        create_directories: bool | None = None,
        expected_sha256: str | None = None,
        file_mode: int | None = None,
    ) -> Steps[UploadResponse]:
        """Writes a file of the workspace atomically, of any size.

        `source` is the path of a local file, bytes, or a binary file. One that cannot seek is
        copied to a temporary file first. The other parameters are those of `write_file`; `APPEND`
        is not possible.

        Raises `FileExists`, `StaleFile`, `NotAFile`, `PolicyDenied` or `NoSpace`.
        """
        with contextlib.ExitStack() as resources:
            file = yield from open_source(source, resources)
            return (
                yield from self._upload(
                    file,
                    path=path,
                    mode=mode,
                    create_directories=create_directories,
                    expected_sha256=expected_sha256,
                    file_mode=file_mode,
                )
            )

    def _upload(self, file: BinaryIO, **values: object) -> Steps[UploadResponse]:
        source = UploadSource(file)
        yield from source.measure()
        if source.size <= MAX_RESUMABLE_BYTES:
            values["upload_id"] = uuid.uuid4().hex
        start = encode(UploadStart, {**values, "size_bytes": source.size, "sha256": source.sha256})
        method = METHODS["Upload"]
        attempts = Attempts(self._options, method)
        offset = 0
        while True:
            try:
                requests = source.requests(cast(UploadStart, start), offset)
                message = yield Unary(
                    method, requests, attempts.metadata(method), attempts.remaining_sec()
                )
                return decode(UploadResponse, message)
            except CallError as error:
                if source.error is not None:
                    raise source.error from error
                delay = attempts.next_delay(error, method)
            yield delay
            previous = offset
            offset = yield from self._upload_offset(values.get("upload_id"))
            if offset > previous:
                attempts.progress()

    def _upload_offset(self, upload_id: object) -> Steps[int]:
        """Returns the number of bytes that the daemon has of an upload."""
        if upload_id is None:
            return 0
        try:
            upload = yield from self._call_raw("GetUpload", {"upload_id": upload_id})
        except CallError as error:
            if error.reason == "UPLOAD_NOT_FOUND":
                return 0
            raise
        return int(upload.offset)

    @operation
    def download(self, path: str, destination: PathText | BinaryIO) -> Steps[DownloadResponse]:
        """Copies a file of the workspace to a local path, atomically, or into a binary file.

        Returns the description of the file: `size_bytes`, `mode`, `modify_time`, `version`. Its
        `data` is empty.

        Raises `FileNotFound`, `NotAFile`, or `StaleFile` if the file changed during the copy: a
        binary file then has bytes of both states.
        """
        if not isinstance(destination, (str, os.PathLike)):
            return (yield from self._download_into(path, destination))
        target = Path(destination)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".jig-", delete=False) as file:
            try:
                last = yield from self._download_into(path, cast(BinaryIO, file))
                file.close()
                # A local file has the permissions of the umask, and the executable bits.
                umask = os.umask(0)
                os.umask(umask)
                os.chmod(file.name, 0o666 & ~umask | last.mode & 0o111 & ~umask)
                os.replace(file.name, target)
            except BaseException:
                os.unlink(file.name)
                raise
        return last

    def _download_into(self, path: str, file: BinaryIO) -> Steps[DownloadResponse]:
        last: Any = None
        with close_later(self._download(path, 0, None)) as messages:
            while (message := (yield from next_item(messages))) is not None:
                file.write(message.data)
                last = message
        last.ClearField("data")
        return decode(DownloadResponse, last)

    @operation
    def read_bytes(self, path: str, *, offset: int = 0, limit: int | None = None) -> Steps[bytes]:
        """Returns the bytes of a file of any size, or at most `limit` of them from `offset` on.

        Raises `FileNotFound`, `NotAFile` or `StaleFile` (it changed during the copy).
        """
        content = bytearray()
        with close_later(self._download(path, offset, limit)) as messages:
            while (message := (yield from next_item(messages))) is not None:
                content += message.data
        return bytes(content)

    @streaming
    def read_chunks(
        self, path: str, *, offset: int = 0, limit: int | None = None
    ) -> StreamSteps[bytes]:
        """Streams the bytes of a file, or a range of them, in chunks of up to 256 KiB.

        Raises the errors of `read_bytes`. After `StaleFile`, the received chunks are not valid.
        """
        with close_later(self._download(path, offset, limit)) as messages:
            while (message := (yield from next_item(messages))) is not None:
                if message.data:
                    yield Emit(message.data)

    def _download(self, path: str, offset: int, limit: int | None) -> StreamSteps[Any]:
        """Streams the messages of a download, and checks that they belong to one state."""
        received = 0
        version: str | None = None
        digest = hashlib.sha256()

        def next_request() -> tuple[str, Mapping[str, object]]:
            nonlocal digest
            digest = hashlib.sha256()
            return "Download", {
                "path": path,
                "offset": offset + received,
                "limit": None if limit is None else limit - received,
                "expected_version": version,
            }

        with close_later(self._messages(next_request)) as messages:
            while (message := (yield from next_item(messages))) is not None:
                received += len(message.data)
                digest.update(message.data)
                if version not in (None, message.version):
                    raise StaleFile(f"{path} changed during the download: start again")
                version = message.version
                if message.HasField("sha256") and message.sha256 != digest.hexdigest():
                    raise ChecksumMismatch(f"{path} arrived damaged: start again")
                yield Emit(message)


class UploadSource:
    """The file that an upload reads. gRPC reads it in a thread of its own."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.begin = file.tell()
        self.size = 0
        self.sha256 = ""
        self.error: Exception | None = None
        self.lock = threading.Lock()
        self.reader = 0

    def measure(self) -> Steps[None]:
        """Reads the size and the checksum."""
        digest = hashlib.sha256()
        while chunk := self.file.read(CHUNK_BYTES):
            digest.update(chunk)
            self.size += len(chunk)
            yield Sleep(0)
        self.sha256 = digest.hexdigest()

    def requests(self, start: UploadStart, offset: int) -> Iterator[Message]:
        """The messages of an upload from a byte on. Those of an earlier attempt end."""
        with self.lock:
            self.reader += 1
            reader = self.reader
        return self.read(reader, start, offset)

    def read(self, reader: int, start: UploadStart, offset: int) -> Iterator[Message]:
        yield UploadRequest(start=start)
        while offset < self.size:
            try:
                with self.lock:
                    if reader != self.reader:
                        return
                    self.file.seek(self.begin + offset)
                    data = self.file.read(min(CHUNK_BYTES, self.size - offset))
            except Exception as error:
                # Raised here, it would cancel the task of an `AsyncClient`.
                self.error = error
                return
            if not data:
                return
            yield UploadRequest(chunk=UploadChunk(offset=offset, data=data))
            offset += len(data)


def open_source(
    source: PathText | bytes | BinaryIO, resources: contextlib.ExitStack
) -> Steps[BinaryIO]:
    """Opens a source as a file that can seek. `resources` closes it."""
    if isinstance(source, bytes):
        return io.BytesIO(source)
    if isinstance(source, (str, os.PathLike)):
        return resources.enter_context(open(source, "rb"))
    if source.seekable():
        return source
    spool = tempfile.SpooledTemporaryFile(max_size=MAX_SPOOL_BYTES)  # noqa: SIM115
    resources.enter_context(spool)
    while chunk := source.read(CHUNK_BYTES):
        spool.write(chunk)
        yield Sleep(0)
    spool.seek(0)
    return cast(BinaryIO, spool)
