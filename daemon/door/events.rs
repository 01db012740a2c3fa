//! `jig.v1.EventService`: what goes on in sessions, from a record's number on, as long as somebody
//! watches.

mod watch;
mod watchers;

use std::{sync::Arc, time::Duration};

use prost_types::Timestamp;
use tonic::{Request, Response, Status};

use self::{
    watch::{Source, Watch},
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
        error::Error,
        store::{
            follower::{Beyond, Follower},
            session::{Numbers, SessionId},
        },
        task,
        tool::page_token::{Filters, read_token, write_token},
    },
};

/// The service.
#[derive(Debug)]
pub(crate) struct Events {
    pipeline: Arc<Pipeline>,
    watchers: Arc<Watchers>,
}

impl Events {
    /// The service.
    pub(crate) fn new(pipeline: Arc<Pipeline>) -> Self {
        Self {
            pipeline,
            watchers: Arc::default(),
        }
    }

    async fn watch(
        &self,
        incoming: Incoming,
        request: WatchEventsRequest,
    ) -> Result<Answers<WatchEventsResponse>, Error> {
        let pipeline = &self.pipeline;
        let request = pipeline
            .catalog
            .check("jig.v1.WatchEventsRequest", request)?;
        let workspace = pipeline.scene(&incoming)?.workspace.name().to_owned();
        let place = self
            .watchers
            .enter((workspace.clone(), incoming.session.clone()))?;
        // Before it is looked for: one that is made meanwhile is not missed.
        let more = pipeline.store.sessions().wait_for_more();
        let after = request.after_sequence;
        let source = match pipeline.existing_session(&incoming).await? {
            Some(session) => Source::Session(Follower::new(session, after).map_err(beyond(after))?),
            None if after > 0 => return Err(beyond(after)(Beyond(0))),
            None => Source::None(more),
        };
        let watch = Watch {
            pipeline: Arc::clone(pipeline),
            source,
            workspace,
            session: incoming.session,
            types: request.types,
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
        let request = pipeline
            .catalog
            .check("jig.v1.ListSessionsRequest", request)?;
        let workspace = pipeline.scene(&incoming)?.workspace.name().to_owned();
        let filters = Filters::new(&["sessions", &workspace], &[]);
        let after = request.page_token.filter(|token| !token.is_empty());
        let after = after
            .map(|token| read_token(&token, &filters))
            .transpose()?;
        let after = after.and_then(|id| SessionId::parse(&id));
        let page_size = request.page_size.unwrap_or_default() as usize;
        let sessions = Arc::clone(pipeline.store.sessions());
        // One more than are told, to know whether there is another page.
        let list = move || sessions.list(&workspace, after.as_ref(), page_size + 1);
        let mut found = task::blocking(list)
            .await
            .map_err(Error::internal)?
            .map_err(Error::internal)?;
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

/// A number behind the last record.
fn beyond(asked: u64) -> impl Fn(Beyond) -> Error {
    move |Beyond(written)| {
        let text = format!(
            "is {asked}, but this session has only got to {written}: is it another, or was it removed since?"
        );
        Error::invalid_field("after_sequence", text)
    }
}

fn info((id, numbers): (SessionId, Numbers)) -> SessionInfo {
    SessionInfo {
        session: id.as_str().to_owned(),
        last_step: numbers.step,
        last_sequence: numbers.sequence,
        last_event_time: numbers.time.parse::<Timestamp>().ok(),
    }
}
