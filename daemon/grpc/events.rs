//! `jig.v1.EventService`: what goes on in sessions, from a record's number on, as long as somebody
//! watches.

mod stream;
mod watch_limiter;

use std::{sync::Arc, time::Duration};

use prost_types::Timestamp;
use tonic::{Request, Response, Status};

use self::{
    stream::{
        EventSource, EventStream, FINISHED, WatchedResults, asks_for, sequence_past_end_error,
    },
    watch_limiter::EventWatchLimiter,
};
use super::{handle, response_stream::ResponseStream, truncate_page};
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

/// Types of events, as records have them.
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

/// The service.
#[derive(Debug)]
pub(crate) struct EventServiceHandler {
    pipeline: Arc<Pipeline>,
    watch_limiter: Arc<EventWatchLimiter>,
}

impl EventServiceHandler {
    /// The service.
    pub(crate) fn new(pipeline: Arc<Pipeline>) -> Self {
        Self { pipeline, watch_limiter: Arc::default() }
    }

    async fn open_stream(
        &self,
        incoming: CallContext,
        request: WatchEventsRequest,
    ) -> Result<ResponseStream<WatchEventsResponse>, Error> {
        let pipeline = &self.pipeline;
        let request = pipeline.catalog.check("jig.v1.WatchEventsRequest", request)?;
        let mut wrong = validate_types(&request.types);
        if request.tail.is_some() && request.after_sequence > 0 {
            wrong.push(Violation {
                field: "tail".to_owned(),
                description: "must not be given beside after_sequence".to_owned(),
            });
        }
        if !wrong.is_empty() {
            return Err(Error::invalid(wrong));
        }
        let workspace = pipeline.workspace_context(&incoming)?.workspace.name().to_owned();
        let session = (workspace.clone(), incoming.session.clone());
        // Not a place among those of calls: what goes on can be watched, however many those are.
        let place = Arc::new(self.watch_limiter.try_acquire(session, incoming.principal.key())?);
        let wants_results = request.with_results && asks_for(&request.types, FINISHED);
        let results =
            wants_results.then(|| pipeline.results.subscribe(&workspace, &incoming.session));
        // Before it is looked for: one that is made meanwhile is not missed.
        let more = pipeline.state_dir.sessions().subscribe_opened();
        let look = |sessions: &SessionStore, workspace: &str, id: &SessionId| {
            Ok(match sessions.open_existing(workspace, id)? {
                Some(session) => Ok(session),
                None => Err(sessions.tombstone_counters(workspace, id)?),
            })
        };
        let after = |last: u64| match request.tail {
            Some(tail) => last.saturating_sub(tail.into()),
            None => request.after_sequence,
        };
        let mut past = 0;
        let (source, after) = match pipeline.query_session(&incoming, &place, look).await? {
            Ok(session) => {
                past = *session.subscribe_last_sequence().borrow();
                let after = after(past);
                let follower =
                    Follower::new(session, after).map_err(sequence_past_end_error(after))?;
                (EventSource::Session(follower), after)
            }
            // One that is made goes on behind what there was of one that was removed.
            Err(past) => {
                let last = past.map_or(0, |past| past.sequence);
                let after = after(last);
                if after > last {
                    return Err(sequence_past_end_error(after)(SequencePastEnd(last)));
                }
                (EventSource::NotCreated(more), after)
            }
        };
        let watch = EventStream {
            pipeline: Arc::clone(pipeline),
            source,
            after,
            announce_position: request.tail.is_some(),
            workspace,
            session: incoming.session,
            principal: incoming.principal,
            types: request.types,
            results: results.map(|subscription| WatchedResults { subscription, past }),
            follow: request.follow.unwrap_or(true),
            keep_alive_interval: Duration::from_secs(u64::from(
                request.keep_alive_sec.unwrap_or(30),
            )),
            deadline: incoming.deadline,
            call_id: incoming.call_id,
            _permit: place,
        };
        Ok(watch.spawn())
    }

    async fn list_page(
        &self,
        incoming: CallContext,
        request: ListSessionsRequest,
    ) -> Result<ListSessionsResponse, Error> {
        let pipeline = &self.pipeline;
        let request = pipeline.catalog.check("jig.v1.ListSessionsRequest", request)?;
        let workspace = pipeline.workspace_context(&incoming)?.workspace.name().to_owned();
        let filters = PageFilterHash::new(&["sessions", &workspace], &[]);
        let after = request.page_token.filter(|token| !token.is_empty());
        let after = after.map(|token| decode_page_token(&token, &filters)).transpose()?;
        let after = after.and_then(|id| SessionId::parse(&id));
        let page_size = request.page_size.unwrap_or_default() as usize;
        let admitted = Arc::new(pipeline.admit_rpc(&incoming).await?);
        // One more than are told, to know whether there is another page.
        let list = move |sessions: &SessionStore, workspace: &str, _: &SessionId| {
            sessions.list(workspace, after.as_ref(), page_size + 1)
        };
        let mut found = pipeline.query_session(&incoming, &admitted, list).await?;
        let last = truncate_page(&mut found, page_size);
        Ok(ListSessionsResponse {
            next_page_token: last
                .map_or_else(String::new, |(id, _)| encode_page_token(&filters, id.as_str())),
            sessions: found.into_iter().map(wire_session).collect(),
        })
    }
}

#[tonic::async_trait]
impl EventService for EventServiceHandler {
    type WatchEventsStream = ResponseStream<WatchEventsResponse>;

    async fn watch_events(
        &self,
        request: Request<WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        handle(request, |incoming, request| self.open_stream(incoming, request)).await
    }

    async fn list_sessions(
        &self,
        request: Request<ListSessionsRequest>,
    ) -> Result<Response<ListSessionsResponse>, Status> {
        handle(request, |incoming, request| self.list_page(incoming, request)).await
    }
}

/// Types that no event has.
fn validate_types(types: &[String]) -> Vec<Violation> {
    let unknown = (0..).zip(types);
    let unknown = unknown.filter(|(_, name)| !EVENT_TYPES.contains(&name.as_str()));
    unknown
        .map(|(index, name): (usize, _)| Violation {
            field: format!("types[{index}]"),
            description: format!(
                "no event is of the type {name:?}: there are {}",
                EVENT_TYPES.join(", ")
            ),
        })
        .collect()
}

fn wire_session((id, numbers): (SessionId, SessionCounters)) -> SessionInfo {
    SessionInfo {
        session: id.as_str().to_owned(),
        last_step: numbers.step,
        last_sequence: numbers.sequence,
        last_event_time: numbers.time.parse::<Timestamp>().ok(),
    }
}
