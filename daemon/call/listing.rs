//! The tools that there are for somebody.

use super::{Pipeline, any_tool, context::Incoming};
use crate::daemon::{catalog::definition::Definition, dialect::Dialect, error::Error};

impl Pipeline {
    /// What models are told of the tools that a caller may use, in the vocabulary of a dialect or in that of
    /// the contract.
    pub(crate) fn definitions(
        &self,
        incoming: &Incoming,
        dialect: Option<&'static Dialect>,
    ) -> Result<Vec<Definition>, Error> {
        let principal = &incoming.principal;
        self.scene(incoming)?;
        let snapshot = self.policy.snapshot();
        let is_there = |tool: &str, said: Option<&str>| {
            principal.may_call(tool).is_ok() && snapshot.settings.has_tool(tool, said)
        };
        Ok(match dialect {
            None => any_tool::names()
                .filter(|tool| is_there(tool, None))
                .filter_map(|tool| self.catalog.definition(tool))
                .collect(),
            Some(dialect) => dialect
                .tools()
                .iter()
                .filter(|tool| {
                    let mut uses = tool.uses.iter();
                    uses.all(|name| is_there(name, Some(tool.name)))
                })
                .map(|tool| dialect.definition(tool, &self.catalog))
                .collect(),
        })
    }
}
