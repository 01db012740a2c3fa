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
    access::principal::Principal,
    any_tool::{self, Answered, AnyTool},
    context::{ByName, Incoming},
    envelope::{self, Call, Ran},
    idempotency::{
        Lost, Ticket,
        answer::{decode, encode, is_final},
    },
    policy::judged::Spoken,
    refusal::Refusal,
    repeatable::Repeatable,
    repeats::Claim,
    subject::KEPT,
};
use crate::{
    api::v1::InvokeResponse,
    daemon::{
        catalog::Text,
        dialect::{Answer, Dialect, DialectTool, Params, Said},
        error::{Error, Reason},
        task,
        tool::{Tool as _, await_job::AwaitJob, lost},
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
        let Invocation {
            id,
            dialect,
            tool,
            params,
            with_result_json,
        } = invocation;
        let spoken_in = dialect;
        let result_of = dialect.filter(|_| with_result_json);
        let own = self.vocabulary(dialect, &tool);
        // Tools of the configuration are of no dialect, but some dialects say how these answer.
        let is_custom = self.catalog.custom(&tool).is_some();
        let dialect = own.or(dialect.filter(|dialect| is_custom && dialect.has_custom()));
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
            by_name: Some(Arc::new(ByName {
                id: id.clone(),
                said: spoken,
                dialect: spoken_in,
            })),
            ..incoming
        };
        let errand = Errand {
            params,
            doing,
            dialect,
            said,
            started,
        };
        let response = match call.filter(|_| changes) {
            Some(call) => self.invoke_once(incoming, errand, call).await,
            None => {
                let stop = CancellationToken::new();
                let deadline = incoming.deadline;
                let performed = self.perform(incoming, errand, None, &stop).await;
                performed.into_envelope(deadline)
            }
        };
        let response = response?;
        let failed = response
            .error
            .as_ref()
            .map(|error| error.error_type.clone());
        facts.note(|facts| {
            let outcome = failed.or_else(|| facts.outcome.take());
            facts.outcome = outcome.or_else(|| Some("success".to_owned()));
        });
        let response = InvokeResponse {
            request_id: id,
            ..response
        };
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
                let performed = Performed {
                    ran,
                    result,
                    dialect,
                    said,
                    started,
                };
                return performed.into_envelope(None);
            }
        };
        // Each caller's deadline ends its own wait, and not the work.
        let incoming = Incoming {
            deadline: None,
            ..incoming
        };
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
            let answer = performed.into_envelope(None);
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
        let Errand {
            params,
            doing,
            dialect,
            said,
            started,
        } = errand;
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
                if let Some(custom) = self.catalog.custom(&said.tool)
                    && dialect.is_some_and(Dialect::ignores_unknown)
                {
                    params.retain(|name, _| custom.takes(name));
                }
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
            let refusal = Refusal {
                dialect,
                tool: &said.tool,
                given,
                duration: begun.elapsed(),
                error,
            };
            self.note_refusal(&incoming, refusal).await;
        }
        Performed {
            result,
            dialect,
            said,
            started,
            ran: tools.into_ran(),
        }
    }

    /// What a tool of the contract has answered, or one of the configuration as the dialect has it.
    fn answer_in(&self, dialect: Option<&Dialect>, tool: &str, data: Map<String, Value>) -> Answer {
        match dialect {
            Some(dialect) => dialect.custom(data),
            None => self.answer_of(tool, data),
        }
    }

    /// What a tool of the contract has answered, and what models are shown of it.
    pub(super) fn answer_of(&self, tool: &str, data: Map<String, Value>) -> Answer {
        Answer {
            shown: Some(self.catalog.shown(tool, &data)),
            ..Answer::data(data.into())
        }
    }

    /// The vocabulary that has a tool of this name: those of the configuration are the same in all of them, and so
    /// are those that it borrows from the contract, and the tool that waits for jobs.
    pub(super) fn vocabulary(
        &self,
        dialect: Option<&'static Dialect>,
        tool: &str,
    ) -> Option<&'static Dialect> {
        dialect.filter(|dialect| {
            let is_own = dialect.tools().iter().any(|own| own.name == tool);
            let is_borrowed = tool == AwaitJob::NAME || dialect.borrowed.contains(&tool);
            self.catalog.custom(tool).is_none() && (is_own || !is_borrowed)
        })
    }

    /// What a call is made as, with its parameters if they could be read.
    fn said(
        &self,
        incoming: &Incoming,
        tool: &str,
        params: Option<&Map<String, Value>>,
    ) -> Result<Said, Error> {
        let none = Map::new();
        let mount_path = self.mount_path(incoming)?;
        Ok(Said::new(tool, params.unwrap_or(&none), &mount_path))
    }

    /// What a call of a dialect is made as.
    pub(super) fn spoken(
        &self,
        incoming: &Incoming,
        dialect: &'static Dialect,
        tool: &DialectTool,
        params: &Map<String, Value>,
    ) -> Result<Arc<Spoken>, Error> {
        let workspace = &self.scene(incoming)?.workspace;
        let name = workspace.name();
        let matters = || self.policy.snapshot().looks_at_said(tool.name, name);
        let plain = |path: &str| Some(workspace.resolve(path).ok()?.to_string());
        let mut texts = Vec::new();
        if envelope::size_of_fields(params) <= KEPT || matters() {
            // What cannot be read is not made a call of.
            let read = dialect.read(tool, params.clone());
            let read = read.map_or_else(|_| params.clone(), Params::into_fields);
            texts = Text::of_json(params, &read, plain);
        }
        Ok(Arc::new(Spoken {
            dialect,
            tool: tool.name,
            texts,
            shown: tool.shown(params),
            given: dialect.given(tool.name, params),
        }))
    }

    /// Where commands find the workspace of a call.
    pub(super) fn mount_path(&self, incoming: &Incoming) -> Result<String, Error> {
        let scene = self.scene(incoming)?;
        Ok(scene.workspace.mount_path().display().to_string())
    }

    /// What does what a call of this name is to do, if `principal` may make it.
    pub(super) fn doing(
        &self,
        principal: &Principal,
        dialect: Option<&'static Dialect>,
        tool: &str,
    ) -> Result<Doing, Error> {
        let Some(dialect) = dialect else {
            let tool = any_tool::find(tool, self, principal)?;
            tool.is_open(self, principal, None)?;
            return Ok(Doing::Canonical(tool));
        };
        let tool = dialect.tool(tool, |tool| self.is_open(principal, tool).is_ok())?;
        self.is_open(principal, tool)?;
        Ok(Doing::Dialect(dialect, tool))
    }

    /// Refuses a tool of a dialect of which `principal` may not call all that it is made of.
    pub(super) fn is_open(&self, principal: &Principal, tool: &DialectTool) -> Result<(), Error> {
        for name in tool.uses {
            principal.may_call(name)?;
            any_tool::find(name, self, principal)?.is_open(self, principal, Some(tool.name))?;
        }
        Ok(())
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
    /// The answer; an error where that is about the call, and not about the tool.
    fn into_envelope(self, deadline: Option<Instant>) -> Result<InvokeResponse, Error> {
        let Self {
            result,
            said,
            dialect,
            ran,
            started,
        } = self;
        let call = Call {
            tool: &said.tool,
            started,
            ended: SystemTime::now(),
        };
        match result {
            Err(error) if is_of_call(&error, deadline) => Err(error),
            result => Ok(envelope::of(&call, dialect, &said, result, &ran)),
        }
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
