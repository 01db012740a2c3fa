//! Tools by their names, with parameters as JSON: what typed calls do, for those who have no types.

mod custom;

use std::{
    collections::BTreeMap,
    marker::PhantomData,
    sync::{Arc, LazyLock},
};

use prost::Message;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::{
    AdmittedCall, AuthorizedCall, Pipeline, StartedCall, ValidatedCall,
    access::principal::Principal, admission::AdmissionRequest, await_with_timeout,
    context::CallContext, envelope::CommandExitInfo, idempotency::Claim,
};
use crate::daemon::{
    catalog::{Catalog, custom::CustomTool, suggest},
    dialect::DialectFuture,
    error::{Error, Reason},
    tool::{
        CallApproval, Tool, apply_patch::ApplyPatch, await_job::AwaitJob,
        create_directory::CreateDirectory, delete_path::DeletePath, edit_file::EditFile,
        edit_notebook::EditNotebook, fetch_url::FetchUrl, last_command::LastCommand,
        list_directory::ListDirectory, list_files::ListFiles, move_path::MovePath,
        read_file::ReadFile, read_notebook::ReadNotebook, run::RunCommand, search::SearchFiles,
        stat_path::StatPath, write_file::WriteFile,
    },
};

/// What it costs to look at a byte of JSON, as so many of a message: values are made of it, and a message of
/// these.
const JSON_COST_PER_BYTE: usize = 4;

/// Any tool.
pub(super) trait DynTool: Send + Sync {
    /// Looks whether somebody may call it at all, whatever with, by its name or by the one that it is `said` by
    /// in a dialect.
    fn require_access(
        &self,
        pipeline: &Pipeline,
        principal: &Principal,
        dialect_tool: Option<&str>,
    ) -> Result<(), Error>;

    /// What it costs to look at a byte of its parameters, as so many of plain text.
    fn cost_per_byte(&self) -> usize;

    /// Looks whether a call could be made, and does nothing. Takes its time where there is much to look at.
    fn validate(
        &self,
        pipeline: &Pipeline,
        context: CallContext,
        params: &Map<String, Value>,
    ) -> Result<Box<dyn DynValidatedCall>, Error>;

    /// Whether a repeated call would do something a second time.
    fn is_mutating(&self, pipeline: &Pipeline) -> bool;

    /// The answer to a repeated call whose first one the daemon died under, as this step of its session.
    fn daemon_lost_output(
        &self,
        pipeline: &Pipeline,
        step: Option<u64>,
    ) -> Result<JsonToolOutput, Error>;
}

/// A call of which nothing is known to be wrong.
pub(super) trait DynValidatedCall: Send {
    /// Looks whether it may be made, and waits until somebody has decided, where the policy says so.
    fn authorize(
        self: Box<Self>,
        pipeline: &Arc<Pipeline>,
    ) -> DialectFuture<'_, Result<Box<dyn DynAuthorizedCall>, Error>>;

    /// Lets it in, waits for a place for it, and starts it. Whoever has the request id of its `ticket`
    /// waits for it.
    fn start<'a>(
        self: Box<Self>,
        pipeline: &'a Arc<Pipeline>,
        claim: Option<&'a Claim>,
    ) -> DialectFuture<'a, Result<RunningCall, Error>>;
}

/// A call that may be made.
pub(super) trait DynAuthorizedCall: Send {
    /// The approval, where somebody was asked.
    fn approval(&self) -> Option<CallApproval>;

    /// Whether it still may be made: it may be long since that was looked at.
    fn still_authorized(
        &self,
        pipeline: &Arc<Pipeline>,
    ) -> DialectFuture<'static, Result<bool, Error>>;

    /// What it wants, as a call of `principal`.
    fn admission_request<'a>(&'a self, principal: &'a Principal) -> AdmissionRequest<'a>;

    /// Records that it starts, and starts it.
    fn start(
        self: Box<Self>,
        pipeline: &Arc<Pipeline>,
        admitted: AdmittedCall,
    ) -> DialectFuture<'_, Result<RunningCall, Error>>;
}

/// A call that goes on.
pub(super) struct RunningCall {
    /// Its step of the session.
    pub(super) step: u64,
    /// Tells it to end at once.
    pub(super) abandon_token: CancellationToken,
    /// Its answer, once it has one. Dropped, it is told to end.
    pub(super) output: DialectFuture<'static, Result<JsonToolOutput, Error>>,
}

/// What a tool has answered.
pub(super) struct JsonToolOutput {
    /// Its fields.
    pub(super) fields: Map<String, Value>,
    /// What a command has left, if that was one.
    pub(super) exit_info: CommandExitInfo,
}

struct TypedTool<T>(PhantomData<fn() -> T>);

/// A call of the tool `T`, and whose it is.
struct TypedCall<T: Tool> {
    context: CallContext,
    validated: ValidatedCall<T>,
}

/// The tools of the contract, by their names.
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

/// The tool of this name. Where there is none, `principal` is told those that there are for it.
pub(super) fn find(
    name: &str,
    pipeline: &Pipeline,
    principal: &Principal,
) -> Result<&'static dyn DynTool, Error> {
    if let Some(tool) = pipeline.catalog.custom_tool(name) {
        return Ok(tool);
    }
    TOOLS.get(name).map(Box::as_ref).ok_or_else(|| {
        let known = tool_names(&pipeline.catalog);
        let is_there = |tool: &&str| {
            principal.require_tool(tool).is_ok()
                && pipeline.require_enabled_tool(tool, None).is_ok()
        };
        let known: Vec<_> = known.filter(is_there).collect();
        let text = format!("there is {}", suggest::unknown_tool_message(name, &known));
        Error::new(Reason::UnknownTool, text).with_metadata("tool", name)
    })
}

/// The names of all of them: first of those of the contract, then of those of the configuration.
pub(super) fn tool_names(catalog: &Catalog) -> impl Iterator<Item = &'static str> {
    let custom = catalog.custom_tools().map(CustomTool::name);
    TOOLS.keys().copied().chain(custom)
}

/// What it costs to look at so many bytes of JSON, as so many of plain text.
pub(super) fn json_validation_cost(bytes: usize) -> usize {
    bytes.saturating_mul(JSON_COST_PER_BYTE)
}

/// What it costs to look at so many bytes of parameters for the tool of this name, if there is one.
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
        let checked = pipeline.validate_request::<T>(&context, request)?;
        Ok(Box::new(TypedCall { context, validated: checked }))
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
    ) -> DialectFuture<'_, Result<Box<dyn DynAuthorizedCall>, Error>> {
        Box::pin(async move {
            let let_in = pipeline.authorize_call::<T>(self.context, self.validated).await?;
            Ok(Box::new(let_in) as Box<dyn DynAuthorizedCall>)
        })
    }

    fn start<'a>(
        self: Box<Self>,
        pipeline: &'a Arc<Pipeline>,
        claim: Option<&'a Claim>,
    ) -> DialectFuture<'a, Result<RunningCall, Error>> {
        Box::pin(async move {
            let begun = pipeline.start_call::<T>(self.context, self.validated, claim);
            Ok(spawn_call(begun.await?, pipeline))
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
    ) -> DialectFuture<'static, Result<bool, Error>> {
        let (pipeline, judged) = (Arc::clone(pipeline), self.reauthorization.clone());
        let principal = Arc::clone(&self.context.principal);
        let is_approved = self.approval().is_some();
        Box::pin(async move { pipeline.still_authorized(&principal, judged, is_approved).await })
    }

    fn admission_request<'a>(&'a self, principal: &'a Principal) -> AdmissionRequest<'a> {
        self.admission_request(principal)
    }

    fn start(
        self: Box<Self>,
        pipeline: &Arc<Pipeline>,
        admitted: AdmittedCall,
    ) -> DialectFuture<'_, Result<RunningCall, Error>> {
        Box::pin(async move {
            let begun = pipeline.record_start::<T>(*self, admitted).await?;
            Ok(spawn_call(begun, pipeline))
        })
    }
}

/// Starts a call of the tool `T`.
fn spawn_call<T: Tool>(started: StartedCall<T>, pipeline: &Arc<Pipeline>) -> RunningCall
where
    T::Response: Message + Default,
{
    let (step, until) = (started.tool_context.step.number(), started.timeout_at);
    let (task, abandon) = started.spawn(pipeline);
    let guard = abandon.clone().drop_guard();
    let pipeline = Arc::clone(pipeline);
    let answer = async move {
        let response = await_with_timeout::<T>(task, until, guard).await?;
        json_output::<T>(&pipeline, &response)
    };
    RunningCall { step, abandon_token: abandon, output: Box::pin(answer) }
}

/// What the tool `T` has answered.
fn json_output<T: Tool>(
    pipeline: &Pipeline,
    response: &T::Response,
) -> Result<JsonToolOutput, Error>
where
    T::Response: Message + Default,
{
    let data = pipeline.spec::<T>()?.write(response)?;
    let ran = match T::NAME == RunCommand::NAME {
        true => CommandExitInfo::from_output(&data),
        false => CommandExitInfo::default(),
    };
    Ok(JsonToolOutput { fields: data, exit_info: ran })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::catalog::Catalog;

    #[test]
    fn every_tool_is_here() {
        let catalog = Catalog::load().unwrap();
        let here: Vec<_> = TOOLS.keys().copied().collect();
        let mut described: Vec<_> = catalog.tool_names().collect();
        described.sort_unstable();
        assert_eq!(here, described);
    }
}
