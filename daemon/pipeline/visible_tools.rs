//! The tools that there are for somebody.

use super::{Pipeline, context::CallContext, dyn_tool};
use crate::daemon::{
    catalog::{definition::ToolDefinition, suggest},
    config::policy::PolicyAction,
    dialect::Dialect,
    error::{Error, Violation},
    tool::{Tool as _, await_job::AwaitJob},
};

impl Pipeline {
    /// What models are told of the tools that a caller may use, in the vocabulary of a dialect or in that of
    /// the contract; those of the configuration are in all of them.
    pub(crate) fn definitions(
        &self,
        context: &CallContext,
        dialect: Option<&'static Dialect>,
        names: &[String],
    ) -> Result<Vec<ToolDefinition>, Error> {
        let principal = &context.principal;
        self.workspace_context(context)?;
        let snapshot = self.policy.snapshot();
        let is_there = |tool: &str, dialect_tool: Option<&str>| {
            principal.require_tool(tool).is_ok()
                && snapshot.policy.is_tool_enabled(tool, dialect_tool)
        };
        let of_dialect = dialect.map(|dialect| {
            let there = dialect.tools().iter().filter(|tool| {
                let mut uses = tool.uses.iter();
                uses.all(|name| is_there(name, Some(tool.name)))
            });
            there.map(|tool| dialect.definition(tool, &self.catalog))
        });
        let by_name = dyn_tool::tool_names(&self.catalog)
            .filter(|tool| {
                dialect.is_none_or(|dialect| {
                    let is_asked_for =
                        *tool == AwaitJob::NAME && names.iter().any(|name| name == tool);
                    self.catalog.custom_tool(tool).is_some()
                        || dialect.borrowed_tools.contains(tool)
                        || is_asked_for
                })
            })
            .filter(|tool| is_there(tool, None))
            .filter_map(|tool| self.catalog.definition(tool));
        let definitions = of_dialect.into_iter().flatten().chain(by_name);
        let definitions = definitions.map(|definition| ToolDefinition {
            requires_approval: snapshot.policy.action_for_risk(definition.risk)
                == PolicyAction::Ask,
            ..definition
        });
        select_by_name(definitions.collect(), names)
    }

    /// Whether a model of a caller knows the tool that waits for jobs, as it is listed in its vocabulary
    /// by default, and may call it.
    pub(crate) fn may_await_jobs(&self, context: &CallContext, dialect: Option<&Dialect>) -> bool {
        dialect.is_none_or(|dialect| dialect.borrowed_tools.contains(&AwaitJob::NAME))
            && context.principal.require_tool(AwaitJob::NAME).is_ok()
            && self.require_enabled_tool(AwaitJob::NAME, None).is_ok()
    }
}

/// Those of these names; without names, all.
fn select_by_name(
    all: Vec<ToolDefinition>,
    names: &[String],
) -> Result<Vec<ToolDefinition>, Error> {
    if names.is_empty() {
        return Ok(all);
    }
    let known: Vec<_> = all.iter().map(|tool| tool.name.as_str()).collect();
    let unknown = names.iter().enumerate();
    let unknown = unknown.filter(|(_, name)| !known.contains(&name.as_str()));
    let violations: Vec<_> = unknown
        .map(|(number, name)| {
            let text = format!("there is {}", suggest::unknown_tool_message(name, &known));
            Violation::new(format!("names[{number}]"), text)
        })
        .collect();
    if !violations.is_empty() {
        return Err(Error::invalid(violations));
    }
    let all = all.into_iter();
    Ok(all.filter(|tool| names.contains(&tool.name)).collect())
}
