//! Checking calls: what can be seen of them before anything is done.

use std::{collections::HashSet, sync::Arc, time::Instant};

use prost::Message as _;

use super::{
    Pipeline, ValidatedCall,
    admission::{AdmissionRequest, WaitDeadline},
    admit::record_rejection_in_span,
    context::CallContext,
    once::IdempotentCall,
    policy_input::{EncodedRequest, MAX_RETAINED_REQUEST_BYTES, PolicyInput, policy_view},
};
use crate::daemon::{
    catalog::{self, PolicyView, ToolSpec},
    error::{Error, Violation},
    task,
    tool::{Tool, WorkspaceContext, run::RunCommand},
};

/// Requests that are looked at at once, of plain text; what takes longer, in its turn, on a thread that may
/// block.
const MAX_INLINE_VALIDATION_BYTES: usize = 64 << 10;

impl Pipeline {
    /// What the descriptors say about the tool `T`.
    pub(super) fn spec<T: Tool>(&self) -> Result<&ToolSpec, Error> {
        let spec = self.catalog.tool(T::NAME);
        spec.ok_or_else(|| Error::internal(format!("no tool {}", T::NAME)))
    }

    /// Validates a call of the tool `T`, and makes it one that can be repeated, as `method`, where that is
    /// asked for and it has a request id.
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
        let looks =
            move |context: &CallContext| pipeline.validate_inline::<T>(context, request, method);
        self.validate_offloaded(context, bytes, looks).await
    }

    /// Looks at what a call says, which takes so many bytes of memory, and costs as much as so many of plain
    /// text do: at once, or in its turn and on a thread that may block, where there is much to look at.
    pub(crate) async fn validate_maybe_offloaded<R: Send + 'static>(
        &self,
        context: &CallContext,
        (bytes, cost): (usize, usize),
        looks: impl FnOnce(&CallContext) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        match cost <= MAX_INLINE_VALIDATION_BYTES {
            true => looks(context),
            false => self.validate_offloaded(context, bytes, looks).await,
        }
    }

    async fn validate_offloaded<R: Send + 'static>(
        &self,
        context: &CallContext,
        bytes: usize,
        looks: impl FnOnce(&CallContext) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        let request = AdmissionRequest {
            deadline: WaitDeadline::At(context.deadline),
            held_bytes: bytes,
            ..AdmissionRequest::from(&*context.principal)
        };
        let since = Instant::now();
        let place = self.admission.acquire_validation_permit(request, &self.shutdown).await;
        let place = place.inspect_err(|error| record_rejection_in_span(context, error, since))?;
        let incoming = context.clone();
        let looked = task::spawn_blocking(move || {
            let looked = looks(&incoming);
            drop(place);
            looked
        });
        looked.await.map_err(Error::internal)?
    }

    fn validate_inline<T: Tool>(
        &self,
        context: &CallContext,
        request: T::Request,
        method: Option<&str>,
    ) -> Result<(Option<IdempotentCall>, ValidatedCall<T>), Error> {
        let repeatable = match method {
            Some(method) => self.idempotent_call(context, method, &request)?,
            None => None,
        };
        Ok((repeatable, self.validate_request::<T>(context, request)?))
    }

    /// Validates a call of the tool `T`.
    pub(super) fn validate_request<T: Tool>(
        &self,
        context: &CallContext,
        request: T::Request,
    ) -> Result<ValidatedCall<T>, Error> {
        self.validate_request_as::<T>(context, request, None)
    }

    /// As [`Self::check`], for what it is called as: `instead` of its own parameters, those who decide are told of
    /// others, and others are recorded.
    pub(super) fn validate_request_as<T: Tool>(
        &self,
        context: &CallContext,
        request: T::Request,
        instead: Option<(PolicyView, serde_json::Value)>,
    ) -> Result<ValidatedCall<T>, Error> {
        let bytes = request.encoded_len();
        let workspace_context = self.workspace_context(context)?.clone();
        let tool = context.effective_tool(T::NAME);
        context.principal.require_tool(tool)?;
        let spec = self.spec::<T>()?;
        let of_alias = context.alias.map(|alias| alias.risk);
        let risk = of_alias.unwrap_or(spec.options.risk());
        let workspace = workspace_context.workspace.name().to_owned();
        context.facts.update(|facts| {
            facts.tool = Some(tool.to_owned());
            facts.workspace = Some(workspace.clone());
        });
        let snapshot = self.policy.snapshot();
        let dialect_call = context.dialect_call();
        let name = dialect_call.as_ref().map(|said| said.tool);
        let keeps = instead.is_none() && snapshot.needs_params(tool, name, risk, &workspace);
        let mut checked = match T::REQUEST_MESSAGE {
            None => spec.validate(request, keeps)?,
            Some(message) => self.catalog.validate(message, request, keeps)?,
        };
        let given = checked.explicit.take();
        let as_given = EncodedRequest {
            message_name: T::REQUEST_MESSAGE,
            encoded: std::mem::take(&mut checked.encoded),
        };
        let (params, shown) = check_params::<T>(checked, &workspace_context)?;
        let of_run =
            workspace_context.run_settings.default_timeout.filter(|_| tool == RunCommand::NAME);
        let policy_input =
            PolicyInput::new(tool, risk, workspace, snapshot).with_dialect_call(dialect_call);
        let (instead, shown) = match instead {
            Some((told, shown)) => (Some(told), shown),
            None => (None, shown),
        };
        let policy_input = match (instead, given) {
            (Some(told), _) => policy_input.with_params(told, Vec::new(), 0),
            (None, Some(given)) => {
                let files = T::affected_paths(&params, &workspace_context);
                let told = policy_view(
                    &given,
                    &workspace_context,
                    T::canonical_text(&params, &workspace_context),
                );
                policy_input.with_params(told, files, given.encoded_len())
            }
            (None, None) => PolicyInput {
                encoded_request: (bytes <= MAX_RETAINED_REQUEST_BYTES).then(|| Arc::new(as_given)),
                ..policy_input
            },
        };
        let policy_input = PolicyInput { cwd: T::cwd(&params).cloned(), ..policy_input };
        Ok(ValidatedCall {
            workspace_context,
            params,
            record_params: shown,
            policy_input,
            default_timeout: context.timeout.or(of_run).unwrap_or_else(|| spec.default_timeout()),
            request_bytes: bytes,
        })
    }
}

/// Checks a request, whose fields were looked at one by one, with its tool; answers its parameters,
/// and what a record shows of them.
fn check_params<T: Tool>(
    checked: catalog::RequestValidation<T::Request>,
    workspace_context: &WorkspaceContext,
) -> Result<(T::Params, serde_json::Value), Error> {
    let catalog::RequestValidation {
        request,
        params: shown,
        mut violations,
        explicit: _,
        encoded: _,
    } = checked;
    let params = T::validate(request, workspace_context, &mut violations);
    if !violations.is_empty() {
        return Err(Error::invalid(first_violation_per_field(violations)));
    }
    let params =
        params?.ok_or_else(|| Error::internal("a request was refused without a reason"))?;
    Ok((params, shown))
}

fn first_violation_per_field(violations: Vec<Violation>) -> Vec<Violation> {
    let mut seen = HashSet::new();
    violations.into_iter().filter(|violation| seen.insert(violation.field.clone())).collect()
}
