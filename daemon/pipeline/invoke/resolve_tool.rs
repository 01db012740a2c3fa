//! What the name of a tool stands for, in the vocabulary that a caller speaks.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::ResolvedTool;
use crate::daemon::{
    catalog::PolicyText,
    dialect::{Dialect, DialectInvocation, DialectParams, DialectTool},
    error::Error,
    pipeline::{
        Pipeline, access::principal::Principal, context::CallContext, dyn_tool, envelope,
        policy::request::DialectCall, policy_input::MAX_RETAINED_REQUEST_BYTES,
    },
    tool::{Tool as _, await_job::AwaitJob},
};

impl Pipeline {
    /// The vocabulary that has a tool of this name: those of the configuration are the same in all of them, and so
    /// are those that it borrows from the contract, and the tool that waits for jobs.
    pub(in crate::daemon::pipeline) fn dialect_of_tool(
        &self,
        dialect: Option<&'static Dialect>,
        tool: &str,
    ) -> Option<&'static Dialect> {
        dialect.filter(|dialect| {
            let is_own = dialect.tools().iter().any(|own| own.name == tool);
            let is_borrowed = tool == AwaitJob::NAME || dialect.borrowed_tools.contains(&tool);
            self.catalog.custom_tool(tool).is_none() && (is_own || !is_borrowed)
        })
    }

    /// The vocabulary in which a call of the tool of this name is answered. Tools of the configuration are of no
    /// vocabulary, but some say how these answer.
    pub(in crate::daemon::pipeline) fn answering_dialect(
        &self,
        dialect: Option<&'static Dialect>,
        tool: &str,
    ) -> Option<&'static Dialect> {
        let is_custom = self.catalog.custom_tool(tool).is_some();
        let of_custom = dialect.filter(|dialect| is_custom && dialect.renders_custom_tools());
        self.dialect_of_tool(dialect, tool).or(of_custom)
    }

    /// Drops the parameters that a tool of the configuration does not take, where the vocabulary in which it is
    /// answered ignores such.
    pub(in crate::daemon::pipeline) fn drop_unknown_params(
        &self,
        dialect: Option<&Dialect>,
        tool: &str,
        params: &mut Map<String, Value>,
    ) {
        if let Some(custom) = self.catalog.custom_tool(tool)
            && dialect.is_some_and(Dialect::ignores_unknown_params)
        {
            params.retain(|name, _| custom.has_param(name));
        }
    }

    /// What a call is made as, with its parameters if they could be read.
    pub(super) fn dialect_invocation(
        &self,
        context: &CallContext,
        tool: &str,
        params: Option<&Map<String, Value>>,
    ) -> Result<DialectInvocation, Error> {
        let none = Map::new();
        let mount_path = self.mount_path(context)?;
        Ok(DialectInvocation::new(tool, params.unwrap_or(&none), &mount_path))
    }

    /// What a call of a dialect is made as.
    pub(in crate::daemon::pipeline) fn dialect_call(
        &self,
        context: &CallContext,
        dialect: &'static Dialect,
        tool: &DialectTool,
        params: &Map<String, Value>,
    ) -> Result<Arc<DialectCall>, Error> {
        let workspace = &self.workspace_context(context)?.workspace;
        let name = workspace.name();
        let matters = || self.policy.snapshot().needs_dialect_params(tool.name, name);
        let plain = |path: &str| Some(workspace.resolve(path).ok()?.to_string());
        let mut texts = Vec::new();
        if envelope::encoded_size_of_fields(params) <= MAX_RETAINED_REQUEST_BYTES || matters() {
            // What cannot be read is not made a call of.
            let read = dialect.read_params(tool, params.clone());
            let read = read.map_or_else(|_| params.clone(), DialectParams::into_fields);
            texts = PolicyText::from_json(params, &read, plain);
        }
        Ok(Arc::new(DialectCall {
            dialect,
            tool: tool.name,
            texts,
            preview_params: tool.display_params(params),
            record_params: dialect.redact_params(tool.name, params),
        }))
    }

    /// Where commands find the workspace of a call.
    pub(in crate::daemon::pipeline) fn mount_path(
        &self,
        context: &CallContext,
    ) -> Result<String, Error> {
        let workspace_context = self.workspace_context(context)?;
        Ok(workspace_context.workspace.mount_path().display().to_string())
    }

    /// What does what a call of this name is to do, if `principal` may make it.
    pub(in crate::daemon::pipeline) fn resolve_tool(
        &self,
        principal: &Principal,
        dialect: Option<&'static Dialect>,
        tool: &str,
    ) -> Result<ResolvedTool, Error> {
        let Some(dialect) = dialect else {
            let tool = dyn_tool::find(tool, self, principal)?;
            tool.require_access(self, principal, None)?;
            return Ok(ResolvedTool::Contract(tool));
        };
        let tool =
            dialect.tool(tool, |tool| self.require_dialect_tool_access(principal, tool).is_ok())?;
        self.require_dialect_tool_access(principal, tool)?;
        Ok(ResolvedTool::Dialect(dialect, tool))
    }

    /// Refuses a tool of a dialect of which `principal` may not call all that it is made of.
    pub(in crate::daemon::pipeline) fn require_dialect_tool_access(
        &self,
        principal: &Principal,
        tool: &DialectTool,
    ) -> Result<(), Error> {
        for name in tool.uses {
            principal.require_tool(name)?;
            dyn_tool::find(name, self, principal)?.require_access(
                self,
                principal,
                Some(tool.name),
            )?;
        }
        Ok(())
    }
}
