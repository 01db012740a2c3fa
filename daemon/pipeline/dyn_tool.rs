//! Tools by name, with JSON parameters: type-erased calls for `Invoke`, batches and jobs.

mod custom;
mod interface;

use std::{
    collections::BTreeMap,
    marker::PhantomData,
    sync::{Arc, LazyLock},
};

use prost::Message;
use serde_json::{Map, Value};

pub(super) use self::interface::{
    DynAuthorizedCall, DynTool, DynValidatedCall, JsonToolOutput, RunningCall,
};
use super::{
    AdmittedCall, AuthorizedCall, Pipeline, StartedCall, ValidatedCall,
    access::principal::Principal, admission::AdmissionRequest, await_with_timeout,
    context::CallContext, envelope::CommandExitInfo, idempotency::Claim,
};
use crate::daemon::{
    catalog::{Catalog, custom::CustomTool, suggest},
    error::{Error, Reason},
    task::BoxFuture,
    tool::{
        CallApproval, Tool, apply_patch::ApplyPatch, await_job::AwaitJob,
        create_directory::CreateDirectory, delete_path::DeletePath, edit_file::EditFile,
        edit_notebook::EditNotebook, fetch_url::FetchUrl, last_command::LastCommand,
        list_directory::ListDirectory, list_files::ListFiles, move_path::MovePath,
        read_file::ReadFile, read_notebook::ReadNotebook, run::RunCommand, search::SearchFiles,
        stat_path::StatPath, write_file::WriteFile,
    },
};

/// Cost of validating a byte of JSON, in bytes of a message: it is parsed, then converted into one.
const JSON_COST_PER_BYTE: usize = 4;

struct TypedTool<T>(PhantomData<fn() -> T>);

struct TypedCall<T: Tool> {
    context: CallContext,
    validated: ValidatedCall<T>,
}

/// The contract's tools, by name.
type ToolsByName = BTreeMap<&'static str, Box<dyn DynTool>>;

static TOOLS: LazyLock<ToolsByName> = LazyLock::new(|| {
    let mut tools = ToolsByName::new();
    register::<ApplyPatch>(&mut tools);
    register::<AwaitJob>(&mut tools);
    register::<CreateDirectory>(&mut tools);
    register::<DeletePath>(&mut tools);
    register::<EditFile>(&mut tools);
    register::<EditNotebook>(&mut tools);
    register::<FetchUrl>(&mut tools);
    register::<LastCommand>(&mut tools);
    register::<ListDirectory>(&mut tools);
    register::<ListFiles>(&mut tools);
    register::<MovePath>(&mut tools);
    register::<ReadFile>(&mut tools);
    register::<ReadNotebook>(&mut tools);
    register::<RunCommand>(&mut tools);
    register::<SearchFiles>(&mut tools);
    register::<StatPath>(&mut tools);
    register::<WriteFile>(&mut tools);
    tools
});

fn register<T: Tool>(tools: &mut ToolsByName)
where
    T::Response: Message + Default,
{
    tools.insert(T::NAME, Box::new(TypedTool::<T>(PhantomData)));
}

/// Finds a tool by name. The error for an unknown name lists the tools that `principal` may call.
pub(super) fn find(
    name: &str,
    pipeline: &Pipeline,
    principal: &Principal,
) -> Result<&'static dyn DynTool, Error> {
    if let Some(tool) = pipeline.catalog.custom_tool(name) {
        return Ok(tool);
    }

    TOOLS.get(name).map(Box::as_ref).ok_or_else(|| {
        let is_available = |tool: &&str| {
            principal.require_tool(tool).is_ok()
                && pipeline.require_enabled_tool(tool, None).is_ok()
        };
        let known: Vec<_> = tool_names(&pipeline.catalog).filter(is_available).collect();
        let text = suggest::unknown_tool_message(name, &known);
        Error::new(Reason::UnknownTool, text).with_metadata("tool", name)
    })
}

/// Returns the names of all tools: those of the contract, then those of the configuration.
pub(super) fn tool_names(catalog: &Catalog) -> impl Iterator<Item = &'static str> {
    let custom = catalog.custom_tools().map(CustomTool::name);
    TOOLS.keys().copied().chain(custom)
}

/// Returns the cost of validating `bytes` of JSON, in bytes of plain text.
pub(super) fn json_validation_cost(bytes: usize) -> usize {
    bytes.saturating_mul(JSON_COST_PER_BYTE)
}

/// Returns the cost of validating `bytes` of parameters for a tool, in bytes of plain text.
pub(super) fn validation_cost(name: &str, catalog: &Catalog, bytes: usize) -> usize {
    let custom = catalog.custom_tool(name).map(DynTool::cost_per_byte);
    let cost = custom.or_else(|| TOOLS.get(name).map(|tool| tool.cost_per_byte()));
    bytes.saturating_mul(cost.unwrap_or(JSON_COST_PER_BYTE))
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
    let (task, abandon_token) = started.spawn(pipeline);
    let guard = abandon_token.clone().drop_guard();

    let pipeline = Arc::clone(pipeline);
    let output = Box::pin(async move {
        let response = await_with_timeout::<T>(task, timeout, guard).await?;
        json_output::<T>(&pipeline, &response)
    });
    RunningCall { step, abandon_token, output }
}

/// Converts a response of the tool `T` into JSON.
fn json_output<T: Tool>(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::catalog::Catalog;

    #[test]
    fn every_tool_is_registered() {
        let catalog = Catalog::load().unwrap();
        let registered: Vec<_> = TOOLS.keys().copied().collect();
        let mut described: Vec<_> = catalog.tool_names().collect();
        described.sort_unstable();
        assert_eq!(registered, described);
    }
}
