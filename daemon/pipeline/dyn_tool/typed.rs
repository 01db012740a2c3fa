//! The tools of the contract as [`DynTool`]s.

use std::{marker::PhantomData, sync::Arc};

use prost::Message;
use serde_json::{Map, Value};

use super::interface::{
    DynAuthorizedCall, DynTool, DynValidatedCall, JSON_COST_PER_BYTE, JsonToolOutput, RunningCall,
};
use crate::daemon::{
    error::Error,
    pipeline::{
        AdmittedCall, AuthorizedCall, Pipeline, StartedCall, ValidatedCall,
        access::principal::Principal, admission::AdmissionRequest, await_with_timeout,
        context::CallContext, envelope::CommandExitInfo, idempotency::Claim,
    },
    task::BoxFuture,
    tool::{CallApproval, Tool, run::RunCommand},
};

/// A tool of the contract.
pub(super) struct TypedTool<T>(PhantomData<fn() -> T>);

pub(super) struct TypedCall<T: Tool> {
    pub(super) context: CallContext,
    pub(super) validated: ValidatedCall<T>,
}

impl<T> TypedTool<T> {
    pub(super) fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T: Tool> DynTool for TypedTool<T>
where
    T::Response: Message + Default,
{
    fn require_access(
        &self,
        pipeline: &Pipeline,
        principal: &Principal,
        dialect_tool: Option<&str>,
    ) -> Result<(), Error> {
        principal.require_role(pipeline.spec::<T>()?.role, T::NAME)?;
        pipeline.require_enabled_tool(T::NAME, dialect_tool)
    }

    fn cost_per_byte(&self) -> usize {
        T::VALIDATION_COST_PER_BYTE * JSON_COST_PER_BYTE
    }

    fn validate(
        &self,
        pipeline: &Pipeline,
        context: CallContext,
        params: &Map<String, Value>,
    ) -> Result<Box<dyn DynValidatedCall>, Error> {
        let request = pipeline.spec::<T>()?.read(params)?;
        let validated = pipeline.validate_request::<T>(&context, request)?;
        Ok(Box::new(TypedCall { context, validated }))
    }

    fn is_mutating(&self, pipeline: &Pipeline) -> bool {
        pipeline.is_mutating::<T>()
    }

    fn daemon_lost_output(
        &self,
        pipeline: &Pipeline,
        step: Option<u64>,
    ) -> Result<JsonToolOutput, Error> {
        json_output::<T>(pipeline, &T::daemon_lost_response(step)?)
    }
}

impl<T: Tool> DynValidatedCall for TypedCall<T>
where
    T::Response: Message + Default,
{
    fn authorize(
        self: Box<Self>,
        pipeline: &Arc<Pipeline>,
    ) -> BoxFuture<'_, Result<Box<dyn DynAuthorizedCall>, Error>> {
        Box::pin(async move {
            let authorized = pipeline.authorize_call::<T>(self.context, self.validated).await?;
            Ok(Box::new(authorized) as Box<dyn DynAuthorizedCall>)
        })
    }

    fn start<'a>(
        self: Box<Self>,
        pipeline: &'a Arc<Pipeline>,
        claim: Option<&'a Claim>,
    ) -> BoxFuture<'a, Result<RunningCall, Error>> {
        Box::pin(async move {
            let started = pipeline.start_call::<T>(self.context, self.validated, claim).await?;
            Ok(spawn_call(started, pipeline))
        })
    }
}

impl<T: Tool> DynAuthorizedCall for AuthorizedCall<T>
where
    T::Response: Message + Default,
{
    fn approval(&self) -> Option<CallApproval> {
        self.authorization.approval()
    }

    fn still_authorized(
        &self,
        pipeline: &Arc<Pipeline>,
    ) -> BoxFuture<'static, Result<bool, Error>> {
        let (pipeline, reauthorization) = (Arc::clone(pipeline), self.reauthorization.clone());
        let principal = Arc::clone(&self.context.principal);
        let is_approved = self.approval().is_some();

        Box::pin(async move {
            pipeline.still_authorized(&principal, reauthorization, is_approved).await
        })
    }

    fn admission_request<'a>(&'a self, principal: &'a Principal) -> AdmissionRequest<'a> {
        self.admission_request(principal)
    }

    fn start(
        self: Box<Self>,
        pipeline: &Arc<Pipeline>,
        admitted: AdmittedCall,
    ) -> BoxFuture<'_, Result<RunningCall, Error>> {
        Box::pin(async move {
            let started = pipeline.start_admitted::<T>(*self, admitted).await?;
            Ok(spawn_call(started, pipeline))
        })
    }
}

/// Runs a started call in a task of its own.
fn spawn_call<T: Tool>(started: StartedCall<T>, pipeline: &Arc<Pipeline>) -> RunningCall
where
    T::Response: Message + Default,
{
    let (step, timeout) = (started.tool_context.step.number(), started.timeout);
    let (task, abandon_token) = started.with_result_capture().spawn(pipeline);
    let guard = abandon_token.clone().drop_guard();

    let pipeline = Arc::clone(pipeline);
    let output = Box::pin(async move {
        let response = await_with_timeout::<T>(task, timeout, guard).await?;
        json_output::<T>(&pipeline, &response)
    });
    RunningCall { step, abandon_token, output }
}

/// Converts a response of the tool `T` into JSON.
pub(super) fn json_output<T: Tool>(
    pipeline: &Pipeline,
    response: &T::Response,
) -> Result<JsonToolOutput, Error>
where
    T::Response: Message + Default,
{
    let fields = pipeline.spec::<T>()?.write(response)?;
    let exit_info = if T::NAME == RunCommand::NAME {
        CommandExitInfo::from_output(&fields)
    } else {
        CommandExitInfo::default()
    };
    Ok(JsonToolOutput { fields, exit_info })
}
