//! Validation of `SubmitJobRequest`, from callers and from the queues of the fleet.

use std::mem::take;

use super::{
    Pipeline,
    context::CallContext,
    job_submission::{JobSubmission, ValidatedSubmission},
    params::{PARAMS_FIELDS, RawParams},
    request_fields::{parse_dialect, validate_queue_name},
};
use crate::{
    api::v1::SubmitJobRequest,
    daemon::error::{Error, Violation},
};

impl Pipeline {
    /// Validates a request and its parameters. The result takes no more memory than the request.
    pub(crate) fn validate_job_request(
        &self,
        context: &CallContext,
        request: SubmitJobRequest,
    ) -> Result<ValidatedSubmission, Error> {
        let submission = parse_submission(self, request)?;
        self.validate_submission(context, submission).map_err(prefix_params_fields)
    }
}

/// Parses a request. Validates it, except the parameters, which the tool validates.
fn parse_submission(
    pipeline: &Pipeline,
    mut request: SubmitJobRequest,
) -> Result<JobSubmission, Error> {
    let json = take(&mut request.params_json);
    let params = RawParams::new(request.params.take(), json, PARAMS_FIELDS);

    let checked = pipeline.catalog.validate("jig.v1.SubmitJobRequest", request, false)?;
    let (request, mut violations) = (checked.request, checked.violations);
    let dialect = parse_dialect(&request.dialect, &mut violations);
    violations.extend(params.conflict_violations());
    let queue = request.queue.unwrap_or_default();
    validate_queue_name(&queue, &mut violations);

    match params.parse() {
        Ok(params) if violations.is_empty() => Ok(JobSubmission {
            dialect,
            tool: request.tool,
            params,
            queue,
            priority: request.priority.unwrap_or_default(),
        }),
        params => {
            violations.extend(params.err().into_iter().flatten());
            Err(Error::invalid(violations))
        }
    }
}

/// Prefixes the fields of violations with `params.`, where the request has the parameters.
fn prefix_params_fields(error: Error) -> Error {
    if error.violations.is_empty() {
        return error;
    }
    let violations = error.violations.into_iter();
    let prefixed = violations.map(|Violation { field, description }| Violation {
        field: format!("params.{field}"),
        description,
    });
    Error::invalid(prefixed.collect())
}
