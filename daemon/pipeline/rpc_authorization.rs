//! What keys and lists of tools leave of calls that are no tool's, but are about what a tool has done or does.

use std::time::SystemTime;

use super::{
    Pipeline,
    context::CallContext,
    jobs::{LiveOrEndedJob, job_not_found_error},
    policy::{decision::DecidedBy, request_ref::PolicyRequestRef},
};
use crate::{
    api::v1::Risk,
    daemon::{
        catalog::custom::CustomTool,
        config::policy::PolicyAction,
        dialect::{self, Dialect},
        error::{Error, Reason},
        store::jobs::qualified_tool_name,
        tool::{Tool as _, read_file::ReadFile, run::RunCommand},
    },
};

impl Pipeline {
    /// Refuses who may not run commands: those that run are as little for him.
    pub(crate) fn require_command_access(&self, context: &CallContext) -> Result<(), Error> {
        context.principal.require_tool(RunCommand::NAME)
    }

    /// Refuses to give a command more to do where commands were switched off since it was started.
    pub(crate) fn require_command_input_access(&self, context: &CallContext) -> Result<(), Error> {
        self.require_command_access(context)?;
        let asked = PolicyRequestRef {
            tool: RunCommand::NAME,
            risk: Risk::Dangerous,
            workspace: self.workspace_context(context)?.workspace.name(),
            texts: &[],
            dialect_call: None,
        };
        let decision = self.policy.snapshot().decide(asked, SystemTime::now());
        if decision.action != PolicyAction::Deny
            || !matches!(decision.decided_by, DecidedBy::ToolLists)
        {
            return Ok(());
        }
        let text = "the operator has switched run off, and what was started before gets nothing more to read: SendSignal ends it";
        Err(Error::new(Reason::ToolDisabled, text).with_metadata("tool", RunCommand::NAME))
    }

    /// The tool that reads artifacts, as the caller knows it, where the caller may call it.
    pub(super) fn artifact_reader(&self, context: &CallContext) -> Option<&'static str> {
        let by_name = context.invoke_origin.as_ref();
        self.artifact_reader_in(context, by_name.and_then(|by_name| by_name.dialect))
    }

    /// The tool of a vocabulary that reads artifacts, where the caller may call it.
    pub(crate) fn artifact_reader_in(
        &self,
        context: &CallContext,
        dialect: Option<&Dialect>,
    ) -> Option<&'static str> {
        let reader = dialect.map_or(ReadFile::NAME, |dialect| dialect.artifact_reader);
        let is_open = context.principal.require_tool(ReadFile::NAME).is_ok()
            && self.require_enabled_tool(ReadFile::NAME, Some(reader)).is_ok();
        is_open.then_some(reader)
    }

    /// Refuses a tool that the caller's key is not for, or one of a dialect that calls such.
    fn require_job_tool(
        &self,
        context: &CallContext,
        dialect: &str,
        tool: &str,
    ) -> Result<(), Error> {
        let own = match dialect {
            "" => None,
            dialect => dialect::find(dialect)?.own(tool),
        };
        // Without one, it is of the contract or of the configuration.
        let Some(tool) = own else {
            return context.principal.require_tool(tool);
        };
        let mut uses = tool.uses.iter();
        uses.try_for_each(|name| context.principal.require_tool(name))
    }

    /// The tools whose jobs a caller sees; without, all.
    pub(crate) fn visible_job_tools(&self, context: &CallContext) -> Option<Vec<String>> {
        let principal = &context.principal;
        let mut tools: Vec<_> = principal.allowed_tools()?.collect();
        let of_configuration = self.catalog.custom_tools().map(CustomTool::name);
        let custom: Vec<_> =
            of_configuration.filter(|tool| principal.require_tool(tool).is_ok()).collect();
        for dialect in dialect::all() {
            let seen = dialect.tools().iter().filter(|tool| {
                let mut uses = tool.uses.iter();
                uses.all(|name| principal.require_tool(name).is_ok())
            });
            tools.extend(seen.map(|tool| qualified_tool_name(dialect.name, tool.name)));
            if dialect.renders_custom_tools() {
                tools.extend(custom.iter().map(|tool| qualified_tool_name(dialect.name, tool)));
            }
        }
        Some(tools)
    }

    /// Finds a job. One of a tool that the caller's key is not for is not there.
    pub(crate) async fn find_job(
        &self,
        context: &CallContext,
        id: &str,
    ) -> Result<LiveOrEndedJob, Error> {
        let workspace = self.workspace_context(context)?.workspace.name();
        let found = self.jobs.find(workspace, id).await?;
        let job = found.job();
        match self.require_job_tool(context, &job.dialect, &job.tool) {
            Ok(()) => Ok(found),
            Err(_) => Err(job_not_found_error(workspace, id)),
        }
    }
}
