//! `jig.v1.EventService`: what goes on in sessions, from a record's number on, as long as somebody
//! watches.

mod watch;
mod watchers;

use std::{sync::Arc, time::Duration};

use prost_types::Timestamp;
use tonic::{Request, Response, Status};

use self::{
    watch::{FINISHED, Source, Watch, WatchedResults, asks_for, beyond},
    watchers::Watchers,
};
use super::{answered, cut_page, outlet::Answers};
use crate::{
    api::v1::{
        ListSessionsRequest, ListSessionsResponse, SessionInfo, WatchEventsRequest,
        WatchEventsResponse, event_service_server::EventService,
    },
    daemon::{
        call::{Pipeline, context::Incoming},
        error::{Error, Violation},
        store::{
            follower::{Beyond, Follower},
            session::{Numbers, SessionId},
            sessions::Sessions,
        },
        tool::page_token::{Filters, read_token, write_token},
    },
};

/// Types of events, as records have them.
const TYPES: [&str; 9] = [
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
pub(crate) struct Events {
    pipeline: Arc<Pipeline>,
    watchers: Arc<Watchers>,
}

impl Events {
    /// The service.
    pub(crate) fn new(pipeline: Arc<Pipeline>) -> Self {
        Self { pipeline, watchers: Arc::default() }
    }

    async fn watch(
        &self,
        incoming: Incoming,
        request: WatchEventsRequest,
    ) -> Result<Answers<WatchEventsResponse>, Error> {
        let pipeline = &self.pipeline;
        let request = pipeline.catalog.check("jig.v1.WatchEventsRequest", request)?;
        let mut wrong = unknown_types(&request.types);
        if request.tail.is_some() && request.after_sequence > 0 {
            wrong.push(Violation {
                field: "tail".to_owned(),
                description: "must not be given beside after_sequence".to_owned(),
            });
        }
        if !wrong.is_empty() {
            return Err(Error::invalid(wrong));
        }
        let workspace = pipeline.scene(&incoming)?.workspace.name().to_owned();
        let session = (workspace.clone(), incoming.session.clone());
        // Not a place among those of calls: what goes on can be watched, however many those are.
        let place = Arc::new(self.watchers.enter(session, incoming.principal.lane())?);
        let wants_results = request.with_results && asks_for(&request.types, FINISHED);
        let results =
            wants_results.then(|| pipeline.results.subscribe(&workspace, &incoming.session));
        // Before it is looked for: one that is made meanwhile is not missed.
        let more = pipeline.store.sessions().wait_for_more();
        let look = |sessions: &Sessions, workspace: &str, id: &SessionId| {
            Ok(match sessions.existing(workspace, id)? {
                Some(session) => Ok(session),
                None => Err(sessions.past_numbers(workspace, id)?),
            })
        };
        let after = |last: u64| match request.tail {
            Some(tail) => last.saturating_sub(tail.into()),
            None => request.after_sequence,
        };
        let mut past = 0;
        let (source, after) = match pipeline.look(&incoming, &place, look).await? {
            Ok(session) => {
                past = *session.last_sequence().borrow();
                let after = after(past);
                let follower = Follower::new(session, after).map_err(beyond(after))?;
                (Source::Session(follower), after)
            }
            // One that is made goes on behind what there was of one that was removed.
            Err(past) => {
                let last = past.map_or(0, |past| past.sequence);
                let after = after(last);
                if after > last {
                    return Err(beyond(after)(Beyond(last)));
                }
                (Source::None(more), after)
            }
        };
        let watch = Watch {
            pipeline: Arc::clone(pipeline),
            source,
            after,
            tells_place: request.tail.is_some(),
            workspace,
            session: incoming.session,
            principal: incoming.principal,
            types: request.types,
            results: results.map(|subscription| WatchedResults { subscription, past }),
            follow: request.follow.unwrap_or(true),
            silence: Duration::from_secs(u64::from(request.keep_alive_sec.unwrap_or(30))),
            deadline: incoming.deadline,
            call_id: incoming.call_id,
            _place: place,
        };
        Ok(watch.begin())
    }

    async fn list(
        &self,
        incoming: Incoming,
        request: ListSessionsRequest,
    ) -> Result<ListSessionsResponse, Error> {
        let pipeline = &self.pipeline;
        let request = pipeline.catalog.check("jig.v1.ListSessionsRequest", request)?;
        let workspace = pipeline.scene(&incoming)?.workspace.name().to_owned();
        let filters = Filters::new(&["sessions", &workspace], &[]);
        let after = request.page_token.filter(|token| !token.is_empty());
        let after = after.map(|token| read_token(&token, &filters)).transpose()?;
        let after = after.and_then(|id| SessionId::parse(&id));
        let page_size = request.page_size.unwrap_or_default() as usize;
        let admitted = Arc::new(pipeline.enter(&incoming).await?);
        // One more than are told, to know whether there is another page.
        let list = move |sessions: &Sessions, workspace: &str, _: &SessionId| {
            sessions.list(workspace, after.as_ref(), page_size + 1)
        };
        let mut found = pipeline.look(&incoming, &admitted, list).await?;
        let last = cut_page(&mut found, page_size);
        Ok(ListSessionsResponse {
            next_page_token: last
                .map_or_else(String::new, |(id, _)| write_token(&filters, id.as_str())),
            sessions: found.into_iter().map(info).collect(),
        })
    }
}

#[tonic::async_trait]
impl EventService for Events {
    type WatchEventsStream = Answers<WatchEventsResponse>;

    async fn watch_events(
        &self,
        request: Request<WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        answered(request, |incoming, request| self.watch(incoming, request)).await
    }

    async fn list_sessions(
        &self,
        request: Request<ListSessionsRequest>,
    ) -> Result<Response<ListSessionsResponse>, Status> {
        answered(request, |incoming, request| self.list(incoming, request)).await
    }
}

/// Types that no event has.
fn unknown_types(types: &[String]) -> Vec<Violation> {
    let unknown = (0..).zip(types);
    let unknown = unknown.filter(|(_, name)| !TYPES.contains(&name.as_str()));
    unknown
        .map(|(index, name): (usize, _)| Violation {
            field: format!("types[{index}]"),
            description: format!(
                "no event is of the type {name:?}: there are {}",
                TYPES.join(", ")
            ),
        })
        .collect()
}

fn info((id, numbers): (SessionId, Numbers)) -> SessionInfo {
    SessionInfo {
        session: id.as_str().to_owned(),
        last_step: numbers.step,
        last_sequence: numbers.sequence,
        last_event_time: numbers.time.parse::<Timestamp>().ok(),
    }
}
