"""Operations that report changes of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from jig.caller import Caller, close_later
from jig.contract import decode_event
from jig.steps import Emit, StreamSteps, next_item, streaming
from jig.v1.messages import EntryChange, EntryChanges, WatchReady

FileWatchEvent: TypeAlias = WatchReady | EntryChange


class WatchOperations(Caller):
    """Watches files."""

    @streaming
    def watch_files(
        self,
        path: str | None = None,
        *,
        globs: Sequence[str] = (),
        exclude_globs: Sequence[str] = (),
        hidden: bool | None = None,
        max_depth: int | None = None,
    ) -> StreamSteps[FileWatchEvent]:
        """Streams the changes below a directory, by default of the whole workspace.

        The first event is `WatchReady`: all later changes are reported. List the directory after
        it. After a lost connection, the watch starts again with another `WatchReady`: changes may
        have been missed, so list the directory again. List the directory of a change of kind
        `RESCAN` too.

        `globs` select files, and `exclude_globs` leave out files and directories.

        Raises `DirectoryNotFound`, `NotADirectory`, `PathEscape`, `SymlinkBlocked`, `InvalidGlob`
        or `ResourceExhausted`.
        """
        values: Mapping[str, object] = {
            "path": path,
            "globs": globs,
            "exclude_globs": exclude_globs,
            "hidden": hidden,
            "max_depth": max_depth,
        }
        with close_later(self._messages(lambda: ("WatchFiles", values))) as messages:
            while (message := (yield from next_item(messages))) is not None:
                event: WatchReady | EntryChanges | None = decode_event(message)
                if isinstance(event, WatchReady):
                    yield Emit(event)
                elif event is not None:
                    for change in event.changes:
                        yield Emit(change)
