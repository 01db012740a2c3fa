//! The tools that there are for somebody.

use super::{Pipeline, any_tool, context::Incoming};
use crate::daemon::{
    catalog::definition::Definition, config::policy::Action, dialect::Dialect, error::Error,
};

impl Pipeline {
    /// What models are told of the tools that a caller may use, in the vocabulary of a dialect or in that of
    /// the contract; those of the configuration are in all of them.
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
        let of_dialect = dialect.map(|dialect| {
            let there = dialect.tools().iter().filter(|tool| {
                let mut uses = tool.uses.iter();
                uses.all(|name| is_there(name, Some(tool.name)))
            });
            there.map(|tool| dialect.definition(tool, &self.catalog))
        });
        let by_name = any_tool::names(&self.catalog)
            .filter(|tool| dialect.is_none() || self.catalog.custom(tool).is_some())
            .filter(|tool| is_there(tool, None))
            .filter_map(|tool| self.catalog.definition(tool));
        let definitions = of_dialect.into_iter().flatten().chain(by_name);
        let definitions = definitions.map(|definition| Definition {
            requires_approval: snapshot.settings.level(definition.risk) == Action::Ask,
            ..definition
        });
        Ok(definitions.collect())
    }
}
