//! `jig.v1.EventService`: streams of session events, from any sequence number on.

mod stream;
mod watch_limiter;

use std::sync::Arc;

use prost_types::Timestamp;
use tonic::{Request, Response, Status};

use self::{
    stream::{
        CALL_FINISHED, EventSource, EventStream, WatchedResults, includes_type,
        sequence_past_end_error,
    },
    watch_limiter::{EventWatchLimiter, EventWatchPermit},
};
use super::{
    handle, handle_stream,
    response_stream::{ResponseStream, WorkspaceStream, keep_alive_interval},
    truncate_page,
};
use crate::{
    api::v1::{
        ListSessionsRequest, ListSessionsResponse, SessionInfo, WatchEventsRequest,
        WatchEventsResponse, event_service_server::EventService,
    },
    daemon::{
        error::{Error, Violation},
        pipeline::{Pipeline, context::CallContext},
        store::{
            follower::{Follower, SequencePastEnd},
            session::{SessionCounters, SessionId},
            sessions::SessionStore,
        },
        tool::page_token::{PageFilterHash, decode_page_token, encode_page_token},
    },
};

/// Types of events, as in the records.
const EVENT_TYPES: [&str; 9] = [
    "tool_call_started",
    "tool_call_finished",
    "tool_call_denied",
    "patch_applied",
    "PATCH_APPLIED",
    "approval_requested",
    "approval_decided",
    "egress",
    "egress_summary",
];

#[derive(Debug)]
pub(crate) struct EventServiceHandler {
    pipeline: Arc<Pipeline>,
    watch_limiter: Arc<EventWatchLimiter>,
}

impl EventServiceHandler {
    pub(crate) fn new(pipeline: Arc<Pipeline>) -> Self {
        Self { pipeline, watch_limiter: Arc::default() }
    }

    async fn open_stream(
        &self,
        context: CallContext,
        request: WatchEventsRequest,
    ) -> Result<ResponseStream<WatchEventsResponse>, Error> {
        let pipeline = &self.pipeline;
        let request = pipeline.catalog.check("jig.v1.WatchEventsRequest", request)?;
        validate_watch_request(&request)?;
        let workspace_context = pipeline.resolve_workspace(&context)?;
        let workspace = workspace_context.workspace.name();

        // Not a permit of the admission queue: events can be watched however many calls run.
        let session = (workspace.to_owned(), context.session.clone());
        let permit =
            Arc::new(self.watch_limiter.try_acquire(session, context.principal.shared_name())?);
        let wants_results = request.with_results && includes_type(&request.types, CALL_FINISHED);
        let results =
            wants_results.then(|| pipeline.results.subscribe(workspace, &context.session));
        let (source, after, past) = self.open_source(&context, &request, &permit).await?;

        let stream = EventStream {
            pipeline: Arc::clone(pipeline),
            after,
            announce_position: request.tail.is_some(),
            workspace: workspace_context,
            session: context.session,
            principal: context.principal,
            types: request.types,
            results: results.map(|subscription| WatchedResults { subscription, past }),
            follow: request.follow.unwrap_or(true),
            keep_alive_interval: keep_alive_interval(request.keep_alive_sec),
            deadline: context.deadline,
            call_id: context.call_id,
            _permit: permit,
        };
        Ok(stream.spawn(source))
    }

    /// Opens the session. Returns where its events come from, the sequence number to start after,
    /// and the last sequence number so far.
    async fn open_source(
        &self,
        context: &CallContext,
        request: &WatchEventsRequest,
        permit: &Arc<EventWatchPermit>,
    ) -> Result<(EventSource, u64, u64), Error> {
        // Subscribe before the lookup, so that a session created in between is not missed.
        let opened = self.pipeline.state_dir.sessions().subscribe_opened();
        let open = |sessions: &SessionStore, workspace: &str, id: &SessionId| {
            Ok(match sessions.open_existing(workspace, id)? {
                Some(session) => Ok(session),
                None => Err(sessions.tombstone_counters(workspace, id)?),
            })
        };
        let after = |last: u64| match request.tail {
            Some(tail) => last.saturating_sub(tail.into()),
            None => request.after_sequence,
        };

        match self.pipeline.query_session(context, permit, open).await? {
            Ok(session) => {
                let last = *session.subscribe_last_sequence().borrow();
                let after = after(last);
                let follower = Follower::new(session, after)
                    .map_err(|past_end| sequence_past_end_error(after, past_end))?;
                Ok((EventSource::Session(follower), after, last))
            }
            // A new session continues the numbers of a removed one.
            Err(removed) => {
                let last = removed.map_or(0, |counters| counters.sequence);
                let after = after(last);
                if after > last {
                    return Err(sequence_past_end_error(after, SequencePastEnd(last)));
                }
                Ok((EventSource::NotCreated(opened), after, 0))
            }
        }
    }

    async fn list_page(
        &self,
        context: CallContext,
        request: ListSessionsRequest,
    ) -> Result<ListSessionsResponse, Error> {
        let pipeline = &self.pipeline;
        let request = pipeline.catalog.check("jig.v1.ListSessionsRequest", request)?;
        let workspace = pipeline.resolve_workspace(&context)?.workspace.name().to_owned();
        let filters = PageFilterHash::new(&["sessions", &workspace], &[]);
        let after = request.page_token.filter(|token| !token.is_empty());
        let after = after.map(|token| decode_page_token(&token, &filters)).transpose()?;
        let after = after.and_then(|id| SessionId::parse(&id));
        let page_size = request.page_size.unwrap_or_default() as usize;

        let admission = Arc::new(pipeline.admit_rpc(&context).await?);
        // One extra entry shows whether another page follows.
        let list = move |sessions: &SessionStore, workspace: &str, _: &SessionId| {
            sessions.list(workspace, after.as_ref(), page_size + 1)
        };
        let mut sessions = pipeline.query_session(&context, &admission, list).await?;
        let last = truncate_page(&mut sessions, page_size);
        Ok(ListSessionsResponse {
            next_page_token: last
                .map_or_else(String::new, |(id, _)| encode_page_token(&filters, id.as_str())),
            sessions: sessions.into_iter().map(wire_session).collect(),
        })
    }
}

#[tonic::async_trait]
impl EventService for EventServiceHandler {
    type WatchEventsStream = WorkspaceStream<WatchEventsResponse>;

    async fn watch_events(
        &self,
        request: Request<WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        handle_stream(request, |context, request| self.open_stream(context, request)).await
    }

    async fn list_sessions(
        &self,
        request: Request<ListSessionsRequest>,
    ) -> Result<Response<ListSessionsResponse>, Status> {
        handle(request, |context, request| self.list_page(context, request)).await
    }
}

/// Rejects unknown event types, and `tail` together with `after_sequence`.
fn validate_watch_request(request: &WatchEventsRequest) -> Result<(), Error> {
    let types = request.types.iter().enumerate();
    let unknown = types.filter(|(_, name)| !EVENT_TYPES.contains(&name.as_str()));
    let mut violations: Vec<_> = unknown
        .map(|(index, name)| Violation {
            field: format!("types[{index}]"),
            description: format!(
                "{name:?} is not an event type: use any of {}",
                EVENT_TYPES.join(", ")
            ),
        })
        .collect();
    if request.tail.is_some() && request.after_sequence > 0 {
        violations.push(Violation {
            field: "tail".to_owned(),
            description: "must not be combined with after_sequence".to_owned(),
        });
    }
    if violations.is_empty() { Ok(()) } else { Err(Error::invalid(violations)) }
}

fn wire_session((id, counters): (SessionId, SessionCounters)) -> SessionInfo {
    SessionInfo {
        session: id.as_str().to_owned(),
        last_step: counters.step,
        last_sequence: counters.sequence,
        last_event_time: counters.time.parse::<Timestamp>().ok(),
    }
}
