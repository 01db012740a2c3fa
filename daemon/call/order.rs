//! What is submitted to be done later: looked at before it is taken on.

use std::{
    future,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use serde_json::{Map, Value};

use super::{Pipeline, any_tool, context::Incoming};
use crate::daemon::{
    catalog::Catalog,
    dialect::{Boxed, Call, Data, Dialect, DialectTool, Params, Tools},
    error::Error,
};

/// The queue of jobs that name none.
const DEFAULT_QUEUE: &str = "default";

/// A call that is to be made when its turn comes.
#[derive(Debug)]
pub(crate) struct Submission {
    /// The vocabulary, where it is not that of the contract.
    pub(crate) dialect: Option<&'static Dialect>,
    /// Name of the tool.
    pub(crate) tool: String,
    /// Its parameters.
    pub(crate) params: Map<String, Value>,
    /// The queue to wait in.
    pub(crate) queue: String,
    /// Who comes first: higher before lower.
    pub(crate) priority: i32,
}

/// A submission of which nothing is known to be wrong.
#[derive(Debug)]
pub(crate) struct Order {
    pub(super) dialect: Option<&'static Dialect>,
    pub(super) tool: String,
    /// Its parameters, as they are kept.
    pub(super) params: Vec<u8>,
    pub(super) queue: String,
    pub(super) priority: i32,
    /// Whether its caller may call the tool at all: said only to who has not submitted it before.
    pub(super) is_open: Result<(), Error>,
}

impl Pipeline {
    /// Looks whether what is submitted could be done. What comes of it takes no more memory than what was
    /// sent.
    pub(crate) fn order(
        &self,
        incoming: &Incoming,
        submission: Submission,
    ) -> Result<Order, Error> {
        let Submission { dialect, tool: name, mut params, queue, priority } = submission;
        let principal = &incoming.principal;
        let own = self.vocabulary(dialect, &name);
        let dialect = self.answering(dialect, &name);
        let is_open = match own {
            None => {
                self.drop_unknown(dialect, &name, &mut params);
                let tool = any_tool::find(&name, self, principal)?;
                let is_open = tool.is_open(self, principal, None);
                if is_open.is_ok() {
                    tool.check(self, incoming.clone(), &params)?;
                }
                is_open
            }
            Some(dialect) => {
                let tool = dialect.tool(&name, |tool| self.is_open(principal, tool).is_ok())?;
                let is_open = self.is_open(principal, tool);
                if is_open.is_ok() {
                    let params = dialect.read(tool, params.clone())?;
                    self.check_first(incoming, tool, params)?;
                }
                is_open
            }
        };
        Ok(Order {
            dialect,
            tool: name,
            params: serde_json::to_vec(&params).map_err(Error::internal)?,
            queue,
            priority,
            is_open,
        })
    }

    /// Looks whether the first call that a tool of a dialect makes could be made, and makes none.
    fn check_first(
        &self,
        incoming: &Incoming,
        tool: &DialectTool,
        params: Params,
    ) -> Result<(), Error> {
        let mut first = FirstCall { pipeline: self, incoming, found: None };
        let told = {
            let mut calls = tool.call(params, &mut first);
            // Nothing is waited for: the first call is answered at once.
            calls.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        };
        match (first.found, told) {
            (Some(found), _) => found,
            (None, Poll::Ready(Err(error))) => Err(error),
            (None, Poll::Ready(Ok(_)) | Poll::Pending) => Ok(()),
        }
    }

    /// Submits a call of a tool of the contract as a job, in the queue that is the default. Answers its id.
    pub(super) async fn submit_call(
        self: &Arc<Self>,
        incoming: &Incoming,
        call: Call,
    ) -> Result<String, Error> {
        let submission = Submission {
            dialect: None,
            tool: call.tool.to_owned(),
            params: call.params.clone(),
            queue: DEFAULT_QUEUE.to_owned(),
            priority: 0,
        };
        let incoming = Incoming { request_id: None, ..incoming.clone() };
        let order = self.order(&incoming, submission);
        let order = order.map_err(|error| call.told(error))?;
        let job = self.submit_job(&incoming, order, false).await?;
        Ok(job.id)
    }
}

/// The tools of the contract, for who only wants to know whether the first call is right.
struct FirstCall<'a> {
    pipeline: &'a Pipeline,
    incoming: &'a Incoming,
    found: Option<Result<(), Error>>,
}

impl FirstCall<'_> {
    fn look(&mut self, call: &Call) -> Error {
        if self.found.is_none() {
            let tool = any_tool::find(call.tool, self.pipeline, &self.incoming.principal);
            let checked = tool
                .and_then(|tool| tool.check(self.pipeline, self.incoming.clone(), &call.params));
            self.found = Some(checked.map(drop).map_err(|error| call.told(error)));
        }
        Error::internal("this call was only looked at")
    }
}

impl Tools for FirstCall<'_> {
    fn call(&mut self, call: Call) -> Boxed<'_, Result<Data, Error>> {
        let looked = self.look(&call);
        Box::pin(future::ready(Err(looked)))
    }

    fn submit(&mut self, call: Call) -> Boxed<'_, Result<String, Error>> {
        let looked = self.look(&call);
        Box::pin(future::ready(Err(looked)))
    }
}

/// What it costs to read parameters, which are so many bytes, as so many of plain text.
pub(crate) fn cost_of_json(bytes: usize) -> usize {
    any_tool::cost_of_json(bytes)
}

/// What it costs to look at the parameters of a job, which are so many bytes, as so many of plain text.
pub(crate) fn cost_of_job(tool: &str, catalog: &Catalog, bytes: usize) -> usize {
    any_tool::cost(tool, catalog, bytes)
}
