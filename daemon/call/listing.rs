//! The tools that there are for somebody.

use super::{Pipeline, any_tool, context::Incoming};
use crate::daemon::{
    catalog::{definition::Definition, nearest},
    config::policy::Action,
    dialect::Dialect,
    error::{Error, Violation},
    tool::{Tool as _, await_job::AwaitJob},
};

impl Pipeline {
    /// What models are told of the tools that a caller may use, in the vocabulary of a dialect or in that of
    /// the contract; those of the configuration are in all of them.
    pub(crate) fn definitions(
        &self,
        incoming: &Incoming,
        dialect: Option<&'static Dialect>,
        names: &[String],
    ) -> Result<Vec<Definition>, Error> {
        let principal = &incoming.principal;
        self.scene(incoming)?;
        let snapshot = self.policy.snapshot();
        let is_there = |tool: &str, said: Option<&str>| {
            principal.may_call(tool).is_ok() && snapshot.settings.has_tool(tool, said)
        };
        let of_dialect = dialect.map(|dialect| {
            let there = dialect.tools().iter().filter(|tool| {
                let mut uses = tool.uses.iter();
                uses.all(|name| is_there(name, Some(tool.name)))
            });
            there.map(|tool| dialect.definition(tool, &self.catalog))
        });
        let by_name = any_tool::names(&self.catalog)
            .filter(|tool| {
                dialect.is_none_or(|dialect| {
                    let is_asked_for =
                        *tool == AwaitJob::NAME && names.iter().any(|name| name == tool);
                    self.catalog.custom(tool).is_some()
                        || dialect.borrowed.contains(tool)
                        || is_asked_for
                })
            })
            .filter(|tool| is_there(tool, None))
            .filter_map(|tool| self.catalog.definition(tool));
        let definitions = of_dialect.into_iter().flatten().chain(by_name);
        let definitions = definitions.map(|definition| Definition {
            requires_approval: snapshot.settings.level(definition.risk) == Action::Ask,
            ..definition
        });
        selected(definitions.collect(), names)
    }

    /// Whether a model of a caller knows the tool that waits for jobs, as it is listed in its vocabulary
    /// by default, and may call it.
    pub(crate) fn may_wait(&self, incoming: &Incoming, dialect: Option<&Dialect>) -> bool {
        dialect.is_none_or(|dialect| dialect.borrowed.contains(&AwaitJob::NAME))
            && incoming.principal.may_call(AwaitJob::NAME).is_ok()
            && self.is_switched_on(AwaitJob::NAME, None).is_ok()
    }
}

/// Those of these names; without names, all.
fn selected(all: Vec<Definition>, names: &[String]) -> Result<Vec<Definition>, Error> {
    if names.is_empty() {
        return Ok(all);
    }
    let known: Vec<_> = all.iter().map(|tool| tool.name.as_str()).collect();
    let unknown = names.iter().enumerate();
    let unknown = unknown.filter(|(_, name)| !known.contains(&name.as_str()));
    let violations: Vec<_> = unknown
        .map(|(number, name)| {
            let text = format!("there is {}", nearest::no_tool(name, &known));
            Violation::new(format!("names[{number}]"), text)
        })
        .collect();
    if !violations.is_empty() {
        return Err(Error::invalid(violations));
    }
    let all = all.into_iter();
    Ok(all.filter(|tool| names.contains(&tool.name)).collect())
}
