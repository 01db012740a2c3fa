//! What goes on in a session, as it happens; and the lists of sessions and artifacts.

use tonic::{Streaming, transport::Channel};

use super::{call::Client, deadline::CallDeadline, error::CallError, methods::methods};
use crate::api::v1::{
    ListArtifactsRequest, ListArtifactsResponse, ListSessionsRequest, ListSessionsResponse,
    WatchEventsRequest, WatchEventsResponse, event_service_client::EventServiceClient,
    watch_events_response::Item,
};

/// Largest message that is accepted: a record shows of its call's parameters 16 KiB, and what a tool
/// says is no longer than its answer.
const MAX_EVENT_BYTES: usize = 64 << 20;

/// What goes on in a session, from a record on.
#[derive(Debug)]
pub struct SessionEvents {
    items: Streaming<WatchEventsResponse>,
    deadline: CallDeadline,
    after_sequence: u64,
}

impl Client {
    /// Watches what goes on in the session of this client.
    ///
    /// # Errors
    ///
    /// When the call failed.
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
    /// Waits for what comes next; nothing at the end, which there is only where it was asked not to
    /// follow.
    ///
    /// # Errors
    ///
    /// When the call failed. Another one goes on behind [`SessionEvents::after_sequence`].
    pub async fn next(&mut self) -> Result<Option<Item>, CallError> {
        loop {
            let Some(response) = self.deadline.enforce(self.items.message()).await? else {
                return Ok(None);
            };
            // One of a kind that only newer clients know.
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

    /// Number of the last record that has come or is gone: behind it another call goes on.
    #[must_use]
    pub fn after_sequence(&self) -> u64 {
        self.after_sequence
    }
}
