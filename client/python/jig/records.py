"""Operations on the daemon itself, and on the records of sessions: artifacts and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from jig.caller import Caller, close_later
from jig.contract import decode_event
from jig.steps import Emit, Steps, StreamSteps, next_item, operation, streaming
from jig.v1.messages import (
    ArtifactInfo,
    CallResult,
    CallResultGap,
    Event,
    EventGap,
    GetInfoResponse,
    SessionInfo,
)

SessionEvent: TypeAlias = Event | EventGap | CallResult | CallResultGap


class RecordOperations(Caller):
    """Describes the daemon, and reads artifacts and events."""

    @operation
    def get_info(self) -> Steps[GetInfoResponse]:
        """Returns version, isolation, limits, workspaces and load of the daemon."""
        return self._call("GetInfo", GetInfoResponse)

    @operation
    def list_sessions(self) -> Steps[list[SessionInfo]]:
        """Lists the sessions of the workspace."""
        return self._pages("ListSessions", SessionInfo, "sessions", page_size=1000)

    @operation
    def list_artifacts(
        self, *, step: int | None = None, job_id: str | None = None
    ) -> Steps[list[ArtifactInfo]]:
        """Lists the artifacts of the session that are not empty, or those of one step.

        With `job_id`, lists those that a fleet job has stored.
        """
        return self._pages(
            "ListArtifacts",
            ArtifactInfo,
            "artifacts",
            step=step,
            job_id=job_id,
            page_size=10_000,
        )

    @operation
    def read_artifact(
        self,
        path: str,
        *,
        offset: int = 0,
        limit: int | None = None,
        job_id: str | None = None,
    ) -> Steps[bytes]:
        """Returns the bytes of an artifact, such as `RunResponse.stdout_path`, or a range of them.

        With `job_id`, it is one that a fleet job has stored.

        Raises `ArtifactNotFound`, or with `job_id` `JobNotFound` or `FleetUnavailable`.
        """
        content = bytearray()

        def next_request() -> tuple[str, Mapping[str, object]]:
            rest = None if limit is None else limit - len(content)
            values = {"path": path, "offset": offset + len(content), "limit": rest}
            return "ReadArtifact", {**values, "job_id": job_id}

        with close_later(self._messages(next_request)) as messages:
            while (message := (yield from next_item(messages))) is not None:
                content += message.data
        return bytes(content)

    @streaming
    def watch_events(
        self,
        *,
        after_sequence: int | None = None,
        follow: bool | None = None,
        types: Sequence[str] = (),
        tail: int | None = None,
        with_results: bool = False,
    ) -> StreamSteps[SessionEvent]:
        """Streams the records of the session: those that exist, then each new one.

        Begins after the record `after_sequence`, or with the last `tail` ones. With `follow=False`,
        it ends after the last record. `EventGap` stands for records that were removed. The stream
        continues after a lost connection.
        """
        last_sequence = after_sequence

        def next_request() -> tuple[str, Mapping[str, object]]:
            return "WatchEvents", {
                "after_sequence": last_sequence,
                "follow": follow,
                "types": types,
                "tail": tail if last_sequence is None else None,
                "with_results": with_results,
            }

        with close_later(self._messages(next_request)) as messages:
            while (message := (yield from next_item(messages))) is not None:
                event: SessionEvent | None = decode_event(message)
                if isinstance(event, Event):
                    last_sequence = event.sequence
                if event is not None:
                    yield Emit(event)
