//! Calls by the names of their tools, in the vocabulary of the contract or in another: what comes of one is in
//! its answer, also where it failed.
//!
//! ```text
//! name, parameters ─▶ tool of the contract ────────────────▶ pipeline ─▶ answer ─▶ envelope
//!        │                                                     ▲
//!        └─────────▶ tool of a dialect ─▶ one or more calls ───┘
//! ```
//!
//! A request id is claimed for the whole of it, and each call of a tool of the contract is permitted, admitted and
//! recorded by itself.

pub(crate) mod batch;
mod canonical;
mod names;
mod result_json;

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

pub(super) use self::canonical::Canonical;
use super::{
    Pipeline,
    any_tool::{Answered, AnyTool},
    context::{ByName, Incoming},
    envelope::{self, Call, Ran},
    idempotency::{
        Lost, Ticket,
        answer::{decode, encode, is_final},
    },
    refusal::Refusal,
    repeatable::Repeatable,
    repeats::Claim,
};
use crate::{
    api::v1::InvokeResponse,
    daemon::{
        dialect::{Answer, Data, Dialect, DialectTool, Said},
        error::{Error, Reason},
        task,
        tool::lost,
    },
};

/// What a request id was used for that made a call by name.
pub(crate) const METHOD: &str = "jig.v1.InvokeService/Invoke";
/// A call whose time is up has failed by its caller's deadline where that is no further away.
const NEAR: Duration = Duration::from_millis(200);

/// A call by name.
#[derive(Debug)]
pub(crate) struct Invocation {
    /// Id that its caller gave it; may be empty.
    pub(crate) id: String,
    /// The vocabulary, where it is not that of the contract.
    pub(crate) dialect: Option<&'static Dialect>,
    /// Name of the tool.
    pub(crate) tool: String,
    /// Its parameters, if they could be read.
    pub(crate) params: Result<Map<String, Value>, Error>,
    /// Whether its result is wanted as the object that the document of the dialect has.
    pub(crate) with_result_json: bool,
}

/// What does it.
#[derive(Clone, Copy)]
pub(super) enum Doing {
    /// A tool of the contract.
    Canonical(&'static dyn AnyTool),
    /// A tool of a dialect.
    Dialect(&'static Dialect, &'static DialectTool),
}

/// A call by name, and what does it.
struct Errand {
    params: Result<Map<String, Value>, Error>,
    doing: Result<Doing, Error>,
    dialect: Option<&'static Dialect>,
    /// What it was called as.
    said: Said,
    started: SystemTime,
}

/// What came of a call.
struct Performed {
    incoming: Incoming,
    result: Result<Answer, Error>,
    dialect: Option<&'static Dialect>,
    said: Said,
    started: SystemTime,
    /// Its command, if it ran one.
    ran: Ran,
}

impl Pipeline {
    /// Makes a call by name. `call` is what makes it one that can be repeated. What is about the call, and not
    /// about the tool, is an error.
    pub(crate) async fn invoke(
        self: &Arc<Self>,
        incoming: Incoming,
        invocation: Invocation,
        call: Option<Repeatable>,
    ) -> Result<InvokeResponse, Error> {
        let started = SystemTime::now();
        let Invocation { id, dialect, tool, params, with_result_json } = invocation;
        let spoken_in = dialect;
        let result_of = dialect.filter(|_| with_result_json);
        let own = self.vocabulary(dialect, &tool);
        let dialect = self.answering(dialect, &tool);
        let facts = incoming.facts.clone();
        facts.note(|facts| {
            facts.dialect = dialect.map(|dialect| dialect.name);
            facts.called_name = Some(tool.clone());
            facts.model_call_id = Some(id.clone()).filter(|id| !id.is_empty());
        });
        // A workspace that there is not is no matter of the tool.
        let said = self.said(&incoming, &tool, params.as_ref().ok())?;
        let doing = self.doing(&incoming.principal, own, &tool);
        let changes = doing.as_ref().is_ok_and(|doing| doing.changes(self));
        let spoken = match (&doing, &params) {
            (Ok(Doing::Dialect(dialect, tool)), Ok(params)) => {
                Some(self.spoken(&incoming, dialect, tool, params)?)
            }
            (Ok(_) | Err(_), _) => None,
        };
        let incoming = Incoming {
            by_name: Some(Arc::new(ByName { id: id.clone(), said: spoken, dialect: spoken_in })),
            ..incoming
        };
        let errand = Errand { params, doing, dialect, said, started };
        let response = match call.filter(|_| changes) {
            Some(call) => self.invoke_once(incoming, errand, call).await,
            None => {
                let stop = CancellationToken::new();
                let deadline = incoming.deadline;
                let performed = self.perform(incoming, errand, None, &stop).await;
                self.finish(performed, deadline)
            }
        };
        let response = response?;
        let failed = response.error.as_ref().map(|error| error.error_type.clone());
        facts.note(|facts| {
            let outcome = failed.or_else(|| facts.outcome.take());
            facts.outcome = outcome.or_else(|| Some("success".to_owned()));
        });
        let response = InvokeResponse { request_id: id, ..response };
        Ok(match result_of {
            Some(dialect) => result_json::of(dialect, response)?,
            None => response,
        })
    }

    /// As [`Self::invoke`], for all who have its request id.
    async fn invoke_once(
        self: &Arc<Self>,
        incoming: Incoming,
        errand: Errand,
        call: Repeatable,
    ) -> Result<InvokeResponse, Error> {
        let canonical = match &errand.doing {
            Ok(Doing::Canonical(tool)) => Some(*tool),
            Ok(Doing::Dialect(..)) | Err(_) => None,
        };
        let (dialect, said, started) = (errand.dialect, errand.said.clone(), errand.started);
        let claim = self.claim_for(call, Lost::IsTold, errand);
        let (ticket, errand) = match claim.await? {
            Claim::Ours(ticket, errand) => (ticket, errand),
            Claim::Answered { answer, .. } => return decode(&answer),
            Claim::Lost(step) => {
                let lost = match canonical {
                    Some(tool) => tool.lost(self, step),
                    None => Err(lost(METHOD)),
                };
                let (result, ran) = match lost {
                    Ok(Answered { data, ran }) => {
                        (Ok(self.answer_in(dialect, &said.tool, data)), ran)
                    }
                    Err(error) => (Err(error), Ran::default()),
                };
                let performed = Performed { incoming, ran, result, dialect, said, started };
                return performed.into_envelope(None).1;
            }
        };
        // Each caller's deadline ends its own wait, and not the work.
        let incoming = Incoming { deadline: None, ..incoming };
        let caller = ticket.caller();
        let pipeline = Arc::clone(self);
        task::spawn_tracked("request", async move {
            let stop = CancellationToken::new();
            let performed = {
                let mut work = pin!(pipeline.perform(incoming, errand, Some(&ticket), &stop));
                tokio::select! {
                    performed = &mut work => performed,
                    () = ticket.left_alone() => {
                        stop.cancel();
                        work.await
                    }
                }
            };
            let is_kept = is_final(&performed.result);
            let answer = pipeline.finish(performed, None);
            ticket.answer(encode(&answer), is_kept).await;
        });
        match caller.wait().await {
            Some(answer) => decode(&answer),
            None => Err(Error::internal("work with a request id was not answered")),
        }
    }

    async fn perform(
        self: &Arc<Self>,
        incoming: Incoming,
        errand: Errand,
        ticket: Option<&Ticket>,
        stop: &CancellationToken,
    ) -> Performed {
        let Errand { params, doing, dialect, said, started } = errand;
        let begun = Instant::now();
        let refusal = dialect.map(|dialect| {
            let none = Map::new();
            let given = dialect.given(&said.tool, params.as_ref().unwrap_or(&none));
            (dialect, incoming.clone(), given)
        });
        let mut tools = Canonical::new(self, incoming, ticket, stop);
        let result = match (doing, params) {
            (Err(error), _) | (_, Err(error)) => Err(error),
            (Ok(Doing::Canonical(tool)), Ok(mut params)) => {
                self.drop_unknown(dialect, &said.tool, &mut params);
                let data = tools.call_tool(tool, &said.tool, params).await;
                data.map(|data| self.answer_in(dialect, &said.tool, data))
            }
            (Ok(Doing::Dialect(dialect, tool)), Ok(params)) => match dialect.read(tool, params) {
                Ok(params) => tool.call(params, &mut tools).await,
                Err(error) => Err(error),
            },
        };
        if let (Some((dialect, incoming, given)), Err(error)) = (refusal, &result)
            && !tools.has_begun()
            && !is_of_call(error, incoming.deadline)
        {
            let refusal =
                Refusal { dialect, tool: &said.tool, given, duration: begun.elapsed(), error };
            self.note_refusal(&incoming, refusal).await;
        }
        let (incoming, ran) = tools.into_parts();
        Performed { incoming, result, dialect, said, started, ran }
    }

    /// The answer, which those get who watch the session, too.
    fn finish(
        &self,
        performed: Performed,
        deadline: Option<Instant>,
    ) -> Result<InvokeResponse, Error> {
        let dialect = performed.dialect;
        let (incoming, response) = performed.into_envelope(deadline);
        let response = response?;
        self.publish_result(&incoming, dialect, &response);
        Ok(response)
    }

    /// What a tool of the contract has answered, or one of the configuration as the dialect has it.
    fn answer_in(&self, dialect: Option<&Dialect>, tool: &str, data: Map<String, Value>) -> Answer {
        match dialect {
            Some(dialect) => dialect.custom(Data::new(data)),
            None => self.answer_of(tool, data),
        }
    }

    /// What a tool of the contract has answered, and what models are shown of it.
    pub(super) fn answer_of(&self, tool: &str, data: Map<String, Value>) -> Answer {
        Answer { shown: Some(self.catalog.shown(tool, &data)), ..Answer::data(data.into()) }
    }
}

impl Doing {
    /// Whether it would do something a second time.
    pub(super) fn changes(&self, pipeline: &Pipeline) -> bool {
        match self {
            Self::Canonical(tool) => tool.changes_something(pipeline),
            Self::Dialect(_, tool) => tool.uses.iter().any(|name| {
                let spec = pipeline.catalog.tool(name);
                spec.is_none_or(|spec| !spec.options.read_only)
            }),
        }
    }
}

impl std::fmt::Debug for Doing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Canonical(_) => f.write_str("Canonical"),
            Self::Dialect(dialect, tool) => write!(f, "{}/{}", dialect.name, tool.name),
        }
    }
}

impl Performed {
    /// The call, and its answer; an error where that is about the call, and not about the tool.
    fn into_envelope(self, deadline: Option<Instant>) -> (Incoming, Result<InvokeResponse, Error>) {
        let Self { incoming, result, said, dialect, ran, started } = self;
        let call = Call { tool: &said.tool, started, ended: SystemTime::now() };
        let response = match result {
            Err(error) if is_of_call(&error, deadline) => Err(error),
            result => Ok(envelope::of(&call, dialect, &said, result, &ran)),
        };
        (incoming, response)
    }
}

/// Whether an error is about the call, and not about the tool.
pub(super) fn is_of_call(error: &Error, deadline: Option<Instant>) -> bool {
    let is_late = deadline.is_some_and(|deadline| deadline < Instant::now() + NEAR);
    matches!(
        error.reason,
        Reason::Unauthenticated
            | Reason::Forbidden
            | Reason::UnknownWorkspace
            | Reason::RequestIdReused
            | Reason::ResourceExhausted
            | Reason::StateLost
            | Reason::Draining
    ) || error.reason == Reason::Timeout && is_late
}
