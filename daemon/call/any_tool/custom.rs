//! Tools of the configuration: each is a command, which is run in its name.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{Answered, AnyTool, COST_OF_JSON, CheckedCall, OfTool, answered};
use crate::{
    api::v1::{Risk, RunRequest},
    daemon::{
        call::{
            Pipeline,
            access::principal::Principal,
            context::{Alias, Incoming},
        },
        catalog::custom::{CustomCall, CustomTool},
        error::Error,
        tool::{Tool as _, run::Run},
    },
};

/// What it costs to compare a byte with a schema, at least: some patterns may be in it.
const COST_OF_SCHEMA: usize = 16;

impl AnyTool for CustomTool {
    fn is_open(
        &self,
        pipeline: &Pipeline,
        principal: &Principal,
        said: Option<&str>,
    ) -> Result<(), Error> {
        principal.may_call(self.name())?;
        principal.has_role(pipeline.spec::<Run>()?.role, self.name())?;
        pipeline.is_switched_on(self.name(), said)
    }

    fn cost(&self) -> usize {
        self.parts().max(COST_OF_SCHEMA) * COST_OF_JSON
    }

    fn check(
        &self,
        pipeline: &Pipeline,
        incoming: Incoming,
        params: &Map<String, Value>,
    ) -> Result<Box<dyn CheckedCall>, Error> {
        // Whoever may not call it is not told what it takes.
        incoming.principal.may_call(self.name())?;
        let workspace = Arc::clone(&pipeline.scene(&incoming)?.workspace);
        let plain = |path: &str| Some(workspace.resolve(path).ok()?.to_string());
        let CustomCall { argv, told, shown } = self.call(params, plain)?;
        let incoming = Incoming {
            alias: Some(Alias { tool: self.name(), risk: self.risk() }),
            limit: self.timeout(),
            ..incoming
        };
        let request = RunRequest { argv, ..RunRequest::default() };
        let checked = pipeline.check_as::<Run>(&incoming, request, Some((told, shown)));
        let checked = checked.map_err(|error| self.told_of_command(error, params))?;
        Ok(Box::new(OfTool { incoming, checked }))
    }

    fn changes_something(&self, _pipeline: &Pipeline) -> bool {
        self.risk() != Risk::ReadOnly
    }

    fn lost(&self, pipeline: &Pipeline, step: Option<u64>) -> Result<Answered, Error> {
        answered::<Run>(pipeline, &Run::lost(step)?)
    }
}
