//! Resolves the name of a tool: one of the contract or of the caller's dialect.

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
    /// Returns the dialect that defines a tool.
    ///
    /// Returns `None` for custom tools, which are the same in all dialects; for tools that
    /// the dialect borrows from the contract; and for `await_job`.
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

    /// Returns the dialect of a tool's response. Some dialects render custom tools too.
    pub(in crate::daemon::pipeline) fn answering_dialect(
        &self,
        dialect: Option<&'static Dialect>,
        tool: &str,
    ) -> Option<&'static Dialect> {
        let is_custom = self.catalog.custom_tool(tool).is_some();
        let custom_renderer = dialect.filter(|dialect| is_custom && dialect.renders_custom_tools());
        self.dialect_of_tool(dialect, tool).or(custom_renderer)
    }

    /// Drops unknown parameters of a custom tool, if its dialect ignores them.
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

    /// Returns a call as the caller made it, with its parameters if they are valid.
    pub(super) fn dialect_invocation(
        &self,
        context: &CallContext,
        tool: &str,
        params: Option<&Map<String, Value>>,
    ) -> Result<DialectInvocation, Error> {
        let mount_path = self.mount_path(context)?;
        Ok(DialectInvocation::new(tool, params.unwrap_or(&Map::new()), &mount_path))
    }

    /// Returns a call in a dialect, for policy and records.
    pub(in crate::daemon::pipeline) fn dialect_call(
        &self,
        context: &CallContext,
        dialect: &'static Dialect,
        tool: &DialectTool,
        params: &Map<String, Value>,
    ) -> Result<Arc<DialectCall>, Error> {
        let workspace = &self.resolve_workspace(context)?.workspace;
        let is_needed = || self.policy.snapshot().needs_dialect_params(tool.name, workspace.name());

        let mut texts = Vec::new();
        if envelope::encoded_size_of_fields(params) <= MAX_RETAINED_REQUEST_BYTES || is_needed() {
            // Invalid parameters are rejected later; until then, the given ones stand for them.
            let canonical = dialect
                .read_params(tool, params.clone())
                .map_or_else(|_| params.clone(), DialectParams::into_fields);
            let resolve = |path: &str| Some(workspace.resolve(path).ok()?.to_string());
            texts = PolicyText::from_json(params, &canonical, resolve);
        }

        Ok(Arc::new(DialectCall {
            dialect,
            tool: tool.name,
            texts,
            preview_params: tool.display_params(params),
            record_params: dialect.redact_params(tool.name, params),
        }))
    }

    /// Returns the path at which commands see the workspace of a call.
    pub(in crate::daemon::pipeline) fn mount_path(
        &self,
        context: &CallContext,
    ) -> Result<String, Error> {
        let workspace_context = self.resolve_workspace(context)?;
        Ok(workspace_context.workspace.mount_path().display().to_string())
    }

    /// Finds the tool for a call, if `principal` may use it.
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

    /// Requires access to all tools that a tool of a dialect uses.
    pub(in crate::daemon::pipeline) fn require_dialect_tool_access(
        &self,
        principal: &Principal,
        tool: &DialectTool,
    ) -> Result<(), Error> {
        for name in tool.uses {
            principal.require_tool(name)?;
            let used = dyn_tool::find(name, self, principal)?;
            used.require_access(self, principal, Some(tool.name))?;
        }
        Ok(())
    }
}
