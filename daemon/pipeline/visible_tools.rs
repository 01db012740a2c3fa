//! The tools that a caller may use.

use super::{Pipeline, context::CallContext, dyn_tool};
use crate::daemon::{
    catalog::{definition::ToolDefinition, suggest},
    config::policy::PolicyAction,
    dialect::Dialect,
    error::{Error, Violation},
    tool::{Tool as _, await_job::AwaitJob},
};

impl Pipeline {
    /// Returns the definitions of the tools that a caller may use, of a dialect or of the
    /// contract. Custom tools are part of every dialect. `names` selects tools,
    /// if any.
    pub(crate) fn definitions(
        &self,
        context: &CallContext,
        dialect: Option<&'static Dialect>,
        names: &[String],
    ) -> Result<Vec<ToolDefinition>, Error> {
        let principal = &context.principal;
        self.resolve_workspace(context)?;
        let snapshot = self.policy.snapshot();
        let is_available = |tool: &str, dialect_tool: Option<&str>| {
            principal.require_tool(tool).is_ok()
                && snapshot.policy.is_tool_enabled(tool, dialect_tool)
        };

        let dialect_definitions = dialect.map(|dialect| {
            dialect
                .tools()
                .iter()
                .filter(|tool| tool.uses.iter().all(|name| is_available(name, Some(tool.name))))
                .map(|tool| dialect.definition(tool, &self.catalog))
        });
        let contract_definitions = dyn_tool::tool_names(&self.catalog)
            .filter(|tool| {
                dialect.is_none_or(|dialect| {
                    let is_await_job_requested =
                        *tool == AwaitJob::NAME && names.iter().any(|name| name == tool);
                    self.catalog.custom_tool(tool).is_some()
                        || dialect.borrowed_tools.contains(tool)
                        || is_await_job_requested
                })
            })
            .filter(|tool| is_available(tool, None))
            .filter_map(|tool| self.catalog.definition(tool));

        let definitions =
            dialect_definitions.into_iter().flatten().chain(contract_definitions).map(
                |definition| ToolDefinition {
                    requires_approval: snapshot.policy.action_for_risk(definition.risk)
                        == PolicyAction::Ask,
                    ..definition
                },
            );
        select_by_name(definitions.collect(), names)
    }

    /// Whether a model knows the tool that waits for jobs (its dialect lists it by default), and
    /// may call it.
    pub(crate) fn may_await_jobs(&self, context: &CallContext, dialect: Option<&Dialect>) -> bool {
        dialect.is_none_or(|dialect| dialect.borrowed_tools.contains(&AwaitJob::NAME))
            && context.principal.require_tool(AwaitJob::NAME).is_ok()
            && self.require_enabled_tool(AwaitJob::NAME, None).is_ok()
    }
}

/// Selects definitions by name. Without names, returns all.
fn select_by_name(
    all: Vec<ToolDefinition>,
    names: &[String],
) -> Result<Vec<ToolDefinition>, Error> {
    if names.is_empty() {
        return Ok(all);
    }

    let known: Vec<_> = all.iter().map(|tool| tool.name.as_str()).collect();
    let violations: Vec<_> = names
        .iter()
        .enumerate()
        .filter(|(_, name)| !known.contains(&name.as_str()))
        .map(|(index, name)| {
            let text = suggest::unknown_tool_message(name, &known);
            Violation::new(format!("names[{index}]"), text)
        })
        .collect();
    if !violations.is_empty() {
        return Err(Error::invalid(violations));
    }

    Ok(all.into_iter().filter(|tool| names.contains(&tool.name)).collect())
}
