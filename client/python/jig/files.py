"""Operations on files of the workspace.

Paths are relative to the workspace, or absolute below its mount path (`/workspace`). Each method
can raise the errors of its RPC in `tool_service.proto`, such as `FileNotFound` and `PathEscape`.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Sequence

from jig.caller import Caller
from jig.errors import CallError
from jig.steps import Steps, operation
from jig.v1.messages import (
    ApplyPatchResponse,
    CellEdit,
    CellType,
    CreateDirectoryResponse,
    DeletePathResponse,
    Edit,
    EditFileResponse,
    EditNotebookResponse,
    Encoding,
    FetchFormat,
    FetchUrlResponse,
    ListDirectoryResponse,
    ListFilesResponse,
    MovePathResponse,
    ReadFileResponse,
    ReadNotebookResponse,
    SearchResponse,
    StatPathResponse,
    WriteFileResponse,
    WriteMode,
)

MAX_PAGE_SIZE = 10_000


class FileOperations(Caller):
    """Reads, changes and searches files."""

    @operation
    def read_file(
        self,
        path: str,
        *,
        start_line: int | None = None,
        end_line: int | None = None,
        encoding: Encoding | None = None,
        max_bytes: int | None = None,
    ) -> Steps[ReadFileResponse]:
        """Reads a text file, or its lines `start_line` to `end_line`, counted from 1.

        Without a range, a file of more than 10,000 lines returns its first and last 5,000. At most
        `max_bytes` (3 MiB; 1 byte to 10 MiB) are returned. `read_bytes` reads files of any size.

        Raises `FileNotFound`, `NotAFile`, `BinaryFile` (`encoding="BASE64"` reads it),
        `LineRangeInvalid` or `FileTooLarge` (over 256 MiB without a range).
        """
        return self._call(
            "ReadFile",
            ReadFileResponse,
            path=path,
            start_line=start_line,
            end_line=end_line,
            encoding=encoding,
            max_bytes=max_bytes,
        )

    @operation
    def write_file(
        self,
        path: str,
        content: str | bytes,
        *,
        mode: WriteMode | None = None,
        create_directories: bool | None = None,
        expected_sha256: str | None = None,
        file_mode: int | None = None,
    ) -> Steps[WriteFileResponse]:
        """Writes a file of up to 10 MiB atomically. `upload` writes files of any size.

        `mode` is `OVERWRITE` (default), `CREATE_NEW` or `APPEND`. Missing directories are created
        unless `create_directories` is false. `file_mode` has permission bits, such as `0o755`.

        Raises `FileExists` (with `CREATE_NEW`), `StaleFile` (another SHA-256 than
        `expected_sha256`), `NotAFile` or `PolicyDenied` (a protected path).
        """
        is_text = isinstance(content, str)
        return self._call(
            "WriteFile",
            WriteFileResponse,
            path=path,
            content=content if is_text else base64.b64encode(to_bytes(content)).decode(),
            encoding="UTF8" if is_text else "BASE64",
            mode=mode,
            create_directories=create_directories,
            expected_sha256=expected_sha256,
            file_mode=file_mode,
        )

    @operation
    def edit_file(
        self,
        path: str,
        edits: Sequence[Edit],
        *,
        expected_sha256: str | None = None,
        dry_run: bool | None = None,
    ) -> Steps[EditFileResponse]:
        """Replaces strings in a text file: all edits, one after the other, or none.

        `Edit(old_string, new_string)` replaces the only occurrence. With `occurrence`, it replaces
        the `FIRST` or `ALL`. `dry_run` returns the diff without a change.

        Raises `StringNotFound`, `StringNotUnique`, `StaleFile`, `BinaryFile` or `FileNotFound`.
        """
        return self._call(
            "EditFile",
            EditFileResponse,
            path=path,
            edits=edits,
            expected_sha256=expected_sha256,
            dry_run=dry_run,
        )

    @operation
    def apply_patch(
        self,
        unified_diff: str,
        *,
        strip: int | None = None,
        dry_run: bool | None = None,
        max_fuzz: int | None = None,
    ) -> Steps[ApplyPatchResponse]:
        """Applies a unified diff of up to 10 MiB: all of its files, or none.

        `strip` leading components of names are removed (1; 0 to 255), as by `patch -p`. Up to
        `max_fuzz` context lines at each end of a hunk can differ (2; 0 to 10).

        Raises `PatchParseError`, `PatchHunkFail`, `FileNotFound` or `FileExists`.
        """
        return self._call(
            "ApplyPatch",
            ApplyPatchResponse,
            unified_diff=unified_diff,
            strip=strip,
            dry_run=dry_run,
            max_fuzz=max_fuzz,
        )

    @operation
    def stat(self, path: str) -> Steps[StatPathResponse]:
        """Describes a path: type, size in bytes, mode, time and SHA-256. Follows no link.

        Raises `FileNotFound`.
        """
        return self._call("StatPath", StatPathResponse, path=path)

    @operation
    def exists(self, path: str) -> Steps[bool]:
        """Returns whether a file, directory or link is at a path."""
        try:
            yield from self._call("StatPath", StatPathResponse, path=path)
        except CallError as error:
            # A component of the path that is a file has nothing below it.
            if error.reason in ("FILE_NOT_FOUND", "NOT_A_DIRECTORY"):
                return False
            raise
        return True

    @operation
    def list_files(
        self,
        root: str | None = None,
        *,
        glob: str | None = None,
        max_results: int | None = None,
        respect_ignore: bool | None = None,
        hidden: bool | None = None,
        max_depth: int | None = None,
    ) -> Steps[ListFilesResponse]:
        """Lists the files below a directory, sorted, relative to it. By default, all of them.

        A `glob` without a slash matches at any depth. `respect_ignore` omits files that ignore
        files name, and `hidden=False` those with a dot. `max_depth` is 1 for the directory itself.

        Raises `DirectoryNotFound`, `NotADirectory` or `InvalidGlob`.
        """
        pages: list[ListFilesResponse] = []
        found = 0
        while True:
            page = yield from self._call(
                "ListFiles",
                ListFilesResponse,
                root=root,
                glob=glob,
                max_results=min(max_results or MAX_PAGE_SIZE, MAX_PAGE_SIZE),
                respect_ignore=respect_ignore,
                hidden=hidden,
                max_depth=max_depth,
                page_token=pages[-1].next_page_token if pages else None,
            )
            pages.append(page)
            found += len(page.files)
            is_full = max_results is not None and found >= max_results
            if is_full or not page.next_page_token:
                break
        files = [file for page in pages for file in page.files]
        return dataclasses.replace(
            pages[-1],
            files=files[:max_results],
            truncated=pages[-1].truncated or len(files) > len(files[:max_results]),
            skipped_names=sum(page.skipped_names for page in pages),
            truncated_ignore_files=sum(page.truncated_ignore_files for page in pages),
        )

    @operation
    def list_dir(self, path: str | None = None) -> Steps[ListDirectoryResponse]:
        """Lists all entries of a directory, sorted by name, with types, sizes, times and modes.

        Raises `DirectoryNotFound` or `NotADirectory`.
        """
        pages: list[ListDirectoryResponse] = []
        while not pages or pages[-1].next_page_token:
            page = yield from self._call(
                "ListDirectory",
                ListDirectoryResponse,
                path=path,
                page_size=MAX_PAGE_SIZE,
                page_token=pages[-1].next_page_token if pages else None,
            )
            pages.append(page)
        entries = [entry for page in pages for entry in page.entries]
        return dataclasses.replace(pages[-1], entries=entries)

    @operation
    def search(
        self,
        query: str,
        *,
        is_regex: bool | None = None,
        case_sensitive: bool | None = None,
        path: str | None = None,
        globs: Sequence[str] = (),
        exclude_globs: Sequence[str] = (),
        context_lines: int | None = None,
        max_results: int | None = None,
        hidden: bool | None = None,
        no_ignore: bool | None = None,
        multiline: bool | None = None,
        max_depth: int | None = None,
    ) -> Steps[SearchResponse]:
        """Searches text files line by line, as ripgrep does.

        Returns the first `max_results` matches (50; 1 to 10,000) with `context_lines` around each
        (2; 0 to 10). `timed_out` says that the search did not reach all files.

        Raises `InvalidRegex`, `InvalidGlob` or `FileNotFound`.
        """
        return self._call(
            "Search",
            SearchResponse,
            query=query,
            is_regex=is_regex,
            case_sensitive=case_sensitive,
            path=path,
            globs=globs,
            exclude_globs=exclude_globs,
            context_lines=context_lines,
            max_results=max_results,
            hidden=hidden,
            no_ignore=no_ignore,
            multiline=multiline,
            max_depth=max_depth,
        )

    @operation
    def create_directory(self, path: str) -> Steps[CreateDirectoryResponse]:
        """Creates a directory and its missing parents. An existing one is no error.

        Raises `FileExists` (it is no directory) or `NotADirectory`.
        """
        return self._call("CreateDirectory", CreateDirectoryResponse, path=path)

    @operation
    def move_path(
        self, source: str, destination: str, *, overwrite: bool | None = None
    ) -> Steps[MovePathResponse]:
        """Moves or renames a file or directory atomically.

        Raises `FileNotFound`, `FileExists` (without `overwrite`), `DirectoryNotEmpty` or
        `DirectoryNotFound` (the parent of `destination`).
        """
        return self._call(
            "MovePath",
            MovePathResponse,
            source=source,
            destination=destination,
            overwrite=overwrite,
        )

    @operation
    def delete_path(self, path: str, *, recursive: bool | None = None) -> Steps[DeletePathResponse]:
        """Deletes a file, a link or a directory.

        Raises `FileNotFound` or `DirectoryNotEmpty` (without `recursive`).
        """
        return self._call("DeletePath", DeletePathResponse, path=path, recursive=recursive)

    @operation
    def read_notebook(
        self, path: str, *, cell_id: str | None = None, cell_index: int | None = None
    ) -> Steps[ReadNotebookResponse]:
        """Reads the cells of a Jupyter notebook, or one of them. Cells are counted from 0.

        Raises `FileNotFound`, `CellNotFound` or `InvalidParams` (it is no notebook).
        """
        return self._call(
            "ReadNotebook",
            ReadNotebookResponse,
            path=path,
            cell_id=cell_id,
            cell_index=cell_index,
        )

    @operation
    def edit_notebook(
        self,
        path: str,
        *,
        cell_id: str | None = None,
        cell_index: int | None = None,
        mode: CellEdit | None = None,
        cell_type: CellType | None = None,
        source: str | None = None,
    ) -> Steps[EditNotebookResponse]:
        """Replaces (default), inserts or deletes one cell of a Jupyter notebook.

        Raises `FileNotFound`, `CellNotFound` or `InvalidParams`.
        """
        return self._call(
            "EditNotebook",
            EditNotebookResponse,
            path=path,
            cell_id=cell_id,
            cell_index=cell_index,
            mode=mode,
            cell_type=cell_type,
            source=source,
        )

    @operation
    def fetch_url(
        self,
        url: str,
        *,
        timeout_sec: int | None = None,
        format: FetchFormat | None = None,
        max_bytes: int | None = None,
    ) -> Steps[FetchUrlResponse]:
        """Fetches a page or file from a host that the operator allows.

        Takes at most `timeout_sec` (10; 1 to 60) and `max_bytes` (1 MiB; up to 4 MiB).

        Raises `EgressDenied` or `FetchError`.
        """
        return self._call(
            "FetchUrl",
            FetchUrlResponse,
            url=url,
            timeout_sec=timeout_sec,
            format=format,
            max_bytes=max_bytes,
        )


def to_bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else bytes(content)
