//! Custom tools: each runs a command, and appears to policy and records under its own name.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{
    interface::{DynTool, DynValidatedCall, JSON_COST_PER_BYTE, JsonToolOutput},
    typed::{TypedCall, json_output},
};
use crate::{
    api::v1::{Risk, RunRequest},
    daemon::{
        catalog::custom::{CustomCall, CustomTool},
        error::Error,
        pipeline::{
            Pipeline,
            access::principal::Principal,
            context::{CallContext, ToolAlias},
        },
        tool::{Tool as _, run::RunCommand},
    },
};

/// Least cost of validating a byte against a schema, which may contain patterns.
const MIN_SCHEMA_COST_PER_BYTE: usize = 16;

impl DynTool for CustomTool {
    fn require_access(
        &self,
        pipeline: &Pipeline,
        principal: &Principal,
        dialect_tool: Option<&str>,
    ) -> Result<(), Error> {
        principal.require_tool(self.name())?;
        principal.require_role(pipeline.spec::<RunCommand>()?.role, self.name())?;
        pipeline.require_enabled_tool(self.name(), dialect_tool)
    }

    fn cost_per_byte(&self) -> usize {
        self.validation_cost().max(MIN_SCHEMA_COST_PER_BYTE) * JSON_COST_PER_BYTE
    }

    fn validate(
        &self,
        pipeline: &Pipeline,
        context: CallContext,
        params: &Map<String, Value>,
    ) -> Result<Box<dyn DynValidatedCall>, Error> {
        // Checked first: the errors below reveal the schema of the tool.
        context.principal.require_tool(self.name())?;
        let workspace = Arc::clone(&pipeline.resolve_workspace(&context)?.workspace);
        let resolve = |path: &str| Some(workspace.resolve(path).ok()?.to_string());
        let CustomCall { argv, policy_view, recorded_params } =
            self.prepare_call(params, resolve)?;

        let context = CallContext {
            alias: Some(ToolAlias { tool: self.name(), risk: self.risk() }),
            timeout: self.timeout(),
            ..context
        };
        let request = RunRequest { argv, ..RunRequest::default() };
        let alias_params = Some((policy_view, recorded_params));
        let validated = pipeline
            .validate_request_as::<RunCommand>(&context, request, alias_params)
            .map_err(|error| self.explain_command_error(error, params))?;
        Ok(Box::new(TypedCall { context, validated }))
    }

    fn is_mutating(&self, _pipeline: &Pipeline) -> bool {
        self.risk() != Risk::ReadOnly
    }

    fn daemon_lost_output(
        &self,
        pipeline: &Pipeline,
        step: Option<u64>,
    ) -> Result<JsonToolOutput, Error> {
        json_output::<RunCommand>(pipeline, &RunCommand::daemon_lost_response(step)?)
    }
}
