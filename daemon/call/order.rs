//! What is submitted to be done later: looked at before it is taken on.

use serde_json::{Map, Value};

use super::{Pipeline, any_tool, context::Incoming};
use crate::daemon::{
    config::jobs::is_queue_name,
    error::{Error, Violation},
};

/// A call that is to be made when its turn comes.
#[derive(Debug)]
pub(crate) struct Submission {
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
        let Submission {
            tool: name,
            params,
            queue,
            priority,
        } = submission;
        if !is_queue_name(&queue) {
            let text = "must have 1 to 80 lower-case letters, digits, and . _ : -";
            return Err(Error::invalid_field("queue", text));
        }
        let tool = any_tool::find(&name, &incoming.principal)?;
        let is_open = tool.is_open(self, &incoming.principal);
        if is_open.is_ok() {
            let checked = tool.check(self, incoming.clone(), &params);
            checked.map_err(of_params)?;
        }
        Ok(Order {
            tool: name,
            params: serde_json::to_vec(&params).map_err(Error::internal)?,
            queue,
            priority,
            is_open,
        })
    }
}

/// What it costs to look at the parameters of a job, which are so many bytes, as so many of plain text.
pub(crate) fn cost_of_job(tool: &str, bytes: usize) -> usize {
    any_tool::cost(tool, bytes)
}

/// What is wrong with parameters that are themselves a field of the request.
fn of_params(error: Error) -> Error {
    if error.violations.is_empty() {
        return error;
    }
    let violations = error.violations.into_iter();
    let named = violations.map(|Violation { field, description }| Violation {
        field: format!("params.{field}"),
        description,
    });
    Error::invalid(named.collect())
}
