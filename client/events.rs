//! RPCs of `EventService`: a session's events as they happen, sessions and artifacts.

use tonic::{Streaming, transport::Channel};

use super::{call::Client, deadline::CallDeadline, error::CallError, methods::methods};
use crate::api::v1::{
    ListArtifactsRequest, ListArtifactsResponse, ListSessionsRequest, ListSessionsResponse,
    WatchEventsRequest, WatchEventsResponse, event_service_client::EventServiceClient,
    watch_events_response::Item,
};

/// Largest message that the client accepts. A record shows up to 16 KiB of a call's parameters, and
/// a result is no longer than the tool's response.
const MAX_EVENT_BYTES: usize = 64 << 20;

/// Stream of the events of a session, from a sequence number on.
#[derive(Debug)]
pub struct SessionEvents {
    items: Streaming<WatchEventsResponse>,
    deadline: CallDeadline,
    after_sequence: u64,
}

impl Client {
    /// Streams the events of this client's session.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails.
    pub async fn watch_events(
        &self,
        request: WatchEventsRequest,
    ) -> Result<SessionEvents, CallError> {
        let deadline = self.deadline();
        let after_sequence = request.after_sequence;
        let mut events = self.events();
        let items = deadline.enforce(events.watch_events(self.with_context(request))).await?;
        Ok(SessionEvents { items: items.into_inner(), deadline, after_sequence })
    }

    fn events(&self) -> EventServiceClient<Channel> {
        EventServiceClient::new(self.channel()).max_decoding_message_size(MAX_EVENT_BYTES)
    }
}

methods! { events {
    /// Lists one page of the sessions of a workspace.
    list_sessions(ListSessionsRequest) -> ListSessionsResponse;
} }

methods! { artifacts {
    /// Lists one page of the artifacts of the session of this client.
    list_artifacts(ListArtifactsRequest) -> ListArtifactsResponse;
} }

impl SessionEvents {
    /// Waits for the next item. Returns `None` at the end of the stream, which comes only if the
    /// request does not follow.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails. To resume, call again with
    /// [`SessionEvents::after_sequence`].
    pub async fn next(&mut self) -> Result<Option<Item>, CallError> {
        loop {
            let Some(response) = self.deadline.enforce(self.items.message()).await? else {
                return Ok(None);
            };
            // Newer daemons may send kinds of items that this client does not know.
            let Some(item) = response.item else { continue };

            match &item {
                Item::Event(event) => self.after_sequence = event.sequence,
                Item::Gap(gap) => self.after_sequence = gap.first_sequence.saturating_sub(1),
                Item::KeepAlive(keep_alive) => self.after_sequence = keep_alive.last_sequence,
                Item::CallResult(_) | Item::CallResultGap(_) => {}
            }

            return Ok(Some(item));
        }
    }

    /// Returns the sequence number of the last record received or skipped, to resume from.
    #[must_use]
    pub fn after_sequence(&self) -> u64 {
        self.after_sequence
    }
}
