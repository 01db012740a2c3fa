//! Validation of calls, before anything else is done.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use prost::Message as _;

use super::{
    Pipeline, ValidatedCall,
    admission::{AdmissionRequest, WaitDeadline},
    context::CallContext,
    once::IdempotentCall,
    policy_input::{EncodedRequest, MAX_RETAINED_REQUEST_BYTES, PolicyInput, policy_view},
};
use crate::daemon::{
    catalog::{self, ExplicitParams, PolicyView, ToolSpec},
    error::{Error, Violation},
    task,
    tool::{RunSettings, Tool, WorkspaceContext, run::RunCommand},
};

/// Longest request, in bytes of plain text, that is validated on the calling thread. A longer one
/// waits for a permit, and is validated on a blocking thread.
const MAX_INLINE_VALIDATION_BYTES: usize = 64 << 10;

impl Pipeline {
    /// Returns the contract's description of the tool `T`.
    pub(super) fn spec<T: Tool>(&self) -> Result<&ToolSpec, Error> {
        let spec = self.catalog.tool(T::NAME);
        spec.ok_or_else(|| Error::internal(format!("no tool {}", T::NAME)))
    }

    /// Validates a call of the tool `T`. With `method` and a request id, the call is idempotent.
    pub(super) async fn validate<T: Tool>(
        self: &Arc<Self>,
        context: &CallContext,
        request: T::Request,
        method: Option<&'static str>,
    ) -> Result<(Option<IdempotentCall>, ValidatedCall<T>), Error> {
        let bytes = request.encoded_len();
        if bytes.saturating_mul(T::VALIDATION_COST_PER_BYTE) <= MAX_INLINE_VALIDATION_BYTES {
            return self.validate_inline::<T>(context, request, method);
        }

        let pipeline = Arc::clone(self);
        let validate =
            move |context: &CallContext| pipeline.validate_inline::<T>(context, request, method);
        self.validate_offloaded(context, bytes, validate).await
    }

    /// Runs `validate` on the calling thread, or on a blocking thread if it is expensive.
    ///
    /// `bytes` is the memory that the request takes, `cost` the length of plain text that is as
    /// expensive to validate.
    pub(crate) async fn validate_maybe_offloaded<R: Send + 'static>(
        &self,
        context: &CallContext,
        (bytes, cost): (usize, usize),
        validate: impl FnOnce(&CallContext) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        if cost <= MAX_INLINE_VALIDATION_BYTES {
            validate(context)
        } else {
            self.validate_offloaded(context, bytes, validate).await
        }
    }

    async fn validate_offloaded<R: Send + 'static>(
        &self,
        context: &CallContext,
        bytes: usize,
        validate: impl FnOnce(&CallContext) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        let request = AdmissionRequest {
            deadline: WaitDeadline::At(context.deadline),
            held_bytes: bytes,
            ..AdmissionRequest::from(&*context.principal)
        };
        let queued_at = Instant::now();
        let permit = self
            .admission
            .acquire_validation_permit(request, &self.shutdown)
            .await
            .inspect_err(|error| self.record_admission(context, Some(error), queued_at))?;

        let context = context.clone();
        let validated = task::spawn_blocking(move || {
            let result = validate(&context);
            drop(permit);
            result
        });
        validated.await.map_err(Error::internal)?
    }

    fn validate_inline<T: Tool>(
        &self,
        context: &CallContext,
        request: T::Request,
        method: Option<&str>,
    ) -> Result<(Option<IdempotentCall>, ValidatedCall<T>), Error> {
        let idempotent_call = match method {
            Some(method) => self.identify_call(context, method, &request)?,
            None => None,
        };
        Ok((idempotent_call, self.validate_request::<T>(context, request)?))
    }

    pub(super) fn validate_request<T: Tool>(
        &self,
        context: &CallContext,
        request: T::Request,
    ) -> Result<ValidatedCall<T>, Error> {
        self.validate_request_as::<T>(context, request, None)
    }

    /// As [`Self::validate_request`], for a call in the name of a custom tool. `alias_params`
    /// replaces what the policy and the records see of the parameters.
    pub(super) fn validate_request_as<T: Tool>(
        &self,
        context: &CallContext,
        request: T::Request,
        alias_params: Option<(PolicyView, serde_json::Value)>,
    ) -> Result<ValidatedCall<T>, Error> {
        let request_bytes = request.encoded_len();
        let workspace_context = WorkspaceContext::clone(&*self.resolve_workspace(context)?);
        let workspace = workspace_context.workspace.name().to_owned();
        let tool = context.effective_tool(T::NAME);
        context.principal.require_tool(tool)?;
        let spec = self.spec::<T>()?;
        let risk = context.alias.map_or(spec.options.risk(), |alias| alias.risk);

        context.access_log_entry.update(|fields| {
            fields.tool = Some(tool.to_owned());
            fields.workspace = Some(workspace.clone());
        });

        let snapshot = self.policy.snapshot();
        let dialect_call = context.dialect_call();
        let dialect_tool = dialect_call.as_ref().map(|call| call.tool);
        let needs_params =
            alias_params.is_none() && snapshot.needs_params(tool, dialect_tool, risk, &workspace);
        let mut validation = match T::REQUEST_MESSAGE {
            None => spec.validate(request, needs_params)?,
            Some(message) => self.catalog.validate(message, request, needs_params)?,
        };
        let explicit_params = validation.explicit.take();
        let encoded_request = (request_bytes <= MAX_RETAINED_REQUEST_BYTES).then(|| {
            let encoded = std::mem::take(&mut validation.encoded);
            Arc::new(EncodedRequest { message_name: T::REQUEST_MESSAGE, encoded })
        });
        let (params, own_record_params) = check_params::<T>(validation, &workspace_context)?;

        let policy_input =
            PolicyInput::new(tool, risk, workspace, snapshot).with_dialect_call(dialect_call);
        let (policy_input, record_params) = match (alias_params, explicit_params) {
            (Some((view, record_params)), _) => {
                (policy_input.with_params(view, Vec::new(), 0), record_params)
            }
            (None, Some(explicit)) => {
                let policy_input =
                    with_explicit_params::<T>(policy_input, &params, &explicit, &workspace_context);
                (policy_input, own_record_params)
            }
            (None, None) => (PolicyInput { encoded_request, ..policy_input }, own_record_params),
        };

        Ok(ValidatedCall {
            policy_input: PolicyInput { cwd: T::cwd(&params).cloned(), ..policy_input },
            default_timeout: context.timeout.unwrap_or_else(|| {
                default_timeout(tool, spec, Some(&workspace_context.run_settings))
            }),
            workspace_context,
            params,
            record_params,
            request_bytes,
        })
    }
}

/// Returns the timeout of a call that gives none itself: of a run the operator's, else the
/// contract's.
pub(crate) fn default_timeout(
    tool: &str,
    spec: &ToolSpec,
    run_settings: Option<&RunSettings>,
) -> Duration {
    let configured = run_settings.and_then(|settings| settings.default_timeout);
    configured.filter(|_| tool == RunCommand::NAME).unwrap_or_else(|| spec.default_timeout())
}

/// Adds the given parameters and the files that they name to the input of the decision.
fn with_explicit_params<T: Tool>(
    policy_input: PolicyInput,
    params: &T::Params,
    explicit: &ExplicitParams,
    workspace_context: &WorkspaceContext,
) -> PolicyInput {
    let files = T::affected_paths(params, workspace_context);
    let canonical = T::canonical_text(params, workspace_context);
    let view = policy_view(explicit, workspace_context, canonical);
    policy_input.with_params(view, files, explicit.encoded_len())
}

/// Runs the tool's own validation. Returns its parameters, and those for records.
///
/// Reports the first violation of each field, those of the schema included.
fn check_params<T: Tool>(
    validation: catalog::RequestValidation<T::Request>,
    workspace_context: &WorkspaceContext,
) -> Result<(T::Params, serde_json::Value), Error> {
    let catalog::RequestValidation {
        request,
        params: record_params,
        mut violations,
        explicit: _,
        encoded: _,
    } = validation;

    let params = T::validate(request, workspace_context, &mut violations);
    if !violations.is_empty() {
        return Err(Error::invalid(first_violation_per_field(violations)));
    }

    let params =
        params?.ok_or_else(|| Error::internal("a tool rejected a request without a violation"))?;
    Ok((params, record_params))
}

fn first_violation_per_field(violations: Vec<Violation>) -> Vec<Violation> {
    let mut seen = HashSet::new();
    violations.into_iter().filter(|violation| seen.insert(violation.field.clone())).collect()
}
