//! Authorization of RPCs that inspect or control the work of a tool: processes, jobs, artifacts.

use std::time::SystemTime;

use super::{
    Pipeline,
    context::CallContext,
    jobs::{LiveOrEndedJob, job_not_found_error},
    policy::{decision::DecidedBy, request::PolicyRequestRef},
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
    /// Requires the right to run commands: without it, running ones are not accessible either.
    pub(crate) fn require_command_access(&self, context: &CallContext) -> Result<(), Error> {
        context.principal.require_tool(RunCommand::NAME)
    }

    /// Also requires that `run` is enabled. A command gets no more input once it is disabled.
    pub(crate) fn require_command_input_access(&self, context: &CallContext) -> Result<(), Error> {
        self.require_command_access(context)?;
        let workspace_context = self.resolve_workspace(context)?;
        let request = PolicyRequestRef {
            tool: RunCommand::NAME,
            risk: Risk::Dangerous,
            workspace: workspace_context.workspace.name(),
            texts: &[],
            dialect_call: None,
        };
        let decision = self.policy.snapshot().decide(request, SystemTime::now());
        if decision.action != PolicyAction::Deny
            || !matches!(decision.decided_by, DecidedBy::ToolLists)
        {
            return Ok(());
        }

        let text = "the operator has disabled run, so running commands get no more input: end this one with SendSignal";

        Err(Error::new(Reason::ToolDisabled, text).with_metadata("tool", RunCommand::NAME))
    }

    /// Returns the tool that reads artifacts, by the name that the caller knows, if it may call it.
    pub(super) fn artifact_reader(&self, context: &CallContext) -> Option<&'static str> {
        let dialect = context.invoke_origin.as_ref().and_then(|origin| origin.dialect);
        self.artifact_reader_in(context, dialect)
    }

    /// Returns the tool of a dialect that reads artifacts, if the caller may call it.
    pub(crate) fn artifact_reader_in(
        &self,
        context: &CallContext,
        dialect: Option<&Dialect>,
    ) -> Option<&'static str> {
        let reader = dialect.map_or(ReadFile::NAME, |dialect| dialect.artifact_reader);
        let may_read = context.principal.require_tool(ReadFile::NAME).is_ok()
            && self.require_enabled_tool(ReadFile::NAME, Some(reader)).is_ok();
        may_read.then_some(reader)
    }

    /// Requires access to a tool, or to all tools that a tool of a dialect uses.
    pub(super) fn require_job_tool(
        &self,
        context: &CallContext,
        dialect: &str,
        tool: &str,
    ) -> Result<(), Error> {
        let dialect_tool = match dialect {
            "" => None,
            dialect => dialect::find(dialect)?.own(tool),
        };
        // Otherwise it is a canonical tool, or one of the configuration.
        let Some(dialect_tool) = dialect_tool else {
            return context.principal.require_tool(tool);
        };

        dialect_tool.uses.iter().try_for_each(|name| context.principal.require_tool(name))
    }

    /// Returns the tools whose jobs a caller sees, or `None` for all.
    pub(crate) fn visible_job_tools(&self, context: &CallContext) -> Option<Vec<String>> {
        let principal = &context.principal;
        let mut tools: Vec<_> = principal.allowed_tools()?.collect();
        let custom_tools: Vec<_> = self
            .catalog
            .custom_tools()
            .map(CustomTool::name)
            .filter(|tool| principal.require_tool(tool).is_ok())
            .collect();

        for dialect in dialect::all() {
            let visible = dialect
                .tools()
                .iter()
                .filter(|tool| tool.uses.iter().all(|name| principal.require_tool(name).is_ok()));
            tools.extend(visible.map(|tool| qualified_tool_name(dialect.name, tool.name)));
            if dialect.renders_custom_tools() {
                let names = custom_tools.iter();
                tools.extend(names.map(|tool| qualified_tool_name(dialect.name, tool)));
            }
        }

        Some(tools)
    }

    /// Finds a job. Returns "not found" for a job of a tool that the caller may not use.
    pub(crate) async fn find_job(
        &self,
        context: &CallContext,
        id: &str,
    ) -> Result<LiveOrEndedJob, Error> {
        context.access_log_entry.update(|fields| fields.job_id = Some(id.to_owned()));
        let workspace_context = self.resolve_workspace(context)?;
        let workspace = workspace_context.workspace.name();
        let found = self.jobs.find(workspace, id).await?;
        let job = found.job();
        match self.require_job_tool(context, &job.dialect, &job.tool) {
            Ok(()) => Ok(found),
            Err(_) => Err(job_not_found_error(workspace, id)),
        }
    }
}
