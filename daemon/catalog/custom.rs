//! Custom tools (`[[tools]]`): each runs a command. Its parameters are defined by a JSON Schema.

mod arguments;
mod parameters;

use std::{collections::BTreeSet, time::Duration};

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::{Map, Value as Json};

use super::{
    definition::{ToolDefinition, ToolHints},
    policy_text::PolicyView,
};
use crate::{
    api::v1,
    daemon::{
        config::tools::{ToolConfig, ToolRisk},
        error::{Error, Reason},
    },
};

/// Most bytes of parameters, as JSON: about the kernel's limit on arguments (`execve(2)`).
const MAX_PARAMS_BYTES: usize = 2 << 20;
/// Most comparisons of a byte of parameters with a part of the schema: about one second.
const MAX_VALIDATION_COMPARISONS: usize = 256 << 20;
/// The tool that runs the commands.
pub(super) const RUN_TOOL: &str = "run";

/// A custom tool.
#[derive(Debug)]
pub(crate) struct CustomTool {
    name: &'static str,
    config: ToolConfig,
    validator: Validator,
    hints: ToolHints,
    /// Parameters whose values are hidden from people. Their schema, or one within it, has
    /// `writeOnly`.
    write_only_params: BTreeSet<String>,
}

/// A valid call of a custom tool.
#[derive(Debug)]
pub(crate) struct CustomCall {
    /// The program and its arguments.
    pub(crate) argv: Vec<String>,
    /// The parameters as policy rules match them.
    pub(crate) policy_view: PolicyView,
    /// The parameters as the call's record contains them.
    pub(crate) recorded_params: Json,
}

impl CustomTool {
    /// Builds a tool from its configuration. `run_options` are those of `run`, which executes it.
    pub(super) fn new(config: ToolConfig, run_options: &v1::ToolOptions) -> Result<Self, String> {
        let validator = build_validator(&Json::Object(config.schema.fields.clone()))?;
        let mut write_only_params = BTreeSet::new();
        for (name, schema) in config.properties().into_iter().flatten() {
            if let Some(default) = schema.get("default")
                && !build_validator(schema)?.is_valid(default)
            {
                return Err(format!("schema.properties.{name}: its default does not match it"));
            }
            if has_write_only(schema) {
                write_only_params.insert(name.clone());
            }
        }

        let is_read_only = config.risk == ToolRisk::ReadOnly;
        Ok(Self {
            hints: ToolHints {
                read_only: is_read_only,
                destructive: config.risk == ToolRisk::Dangerous,
                idempotent: is_read_only,
                open_world: run_options.open_world,
            },
            name: config.name.clone().leak(),
            write_only_params,
            validator,
            config,
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn risk(&self) -> v1::Risk {
        match self.config.risk {
            ToolRisk::ReadOnly => v1::Risk::ReadOnly,
            ToolRisk::SafeWrite => v1::Risk::SafeWrite,
            ToolRisk::Dangerous => v1::Risk::Dangerous,
        }
    }

    /// The time limit, if it differs from that of other commands.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.config.timeout
    }

    /// Most parts of the schema that a byte of the parameters may be compared with.
    pub(crate) fn validation_cost(&self) -> usize {
        self.config.schema.validation_cost
    }

    /// Whether the tool has a parameter of this name.
    pub(crate) fn has_param(&self, name: &str) -> bool {
        self.param_names().any(|known| known == name)
    }

    /// The definition for models. The response has the format of `run`.
    pub(super) fn definition(&self, output: Option<Map<String, Json>>) -> ToolDefinition {
        ToolDefinition {
            name: self.config.name.clone(),
            title: String::new(),
            description: self.config.description.clone(),
            input_schema: self.config.schema.fields.clone(),
            output_schema: output,
            hints: self.hints,
            risk: self.risk(),
            requires_approval: false,
        }
    }

    /// Validates the parameters of a call and reports all violations. `normalize_path` normalizes a
    /// path of the workspace.
    pub(crate) fn prepare_call(
        &self,
        given: &Map<String, Json>,
        normalize_path: impl Fn(&str) -> Option<String>,
    ) -> Result<CustomCall, Error> {
        let bytes = Json::Object(given.clone()).to_string().len();
        let max_bytes =
            MAX_PARAMS_BYTES.min(MAX_VALIDATION_COMPARISONS / self.validation_cost().max(1));
        if bytes > max_bytes {
            let text = format!(
                "the parameters of {} have {bytes} bytes as JSON; at most {max_bytes} are allowed: give less",
                self.name
            );
            return Err(Error::new(Reason::InvalidParams, text));
        }

        let params = self.read_params(given, bytes)?;
        Ok(CustomCall {
            argv: self.render_argv(&params)?,
            policy_view: self.policy_view(given, &params, normalize_path),
            recorded_params: self.redacted_params(given),
        })
    }
}

/// Builds the validator of a schema. It matches patterns in linear time and fetches nothing.
fn build_validator(schema: &Json) -> Result<Validator, String> {
    jsonschema::options()
        .with_draft(Draft::Draft202012)
        .should_validate_formats(true)
        .with_pattern_options(PatternOptions::regex())
        .build(schema)
        .map_err(|error| {
            let path = error.instance_path().to_string().replace('/', ".");
            format!("schema{path}: {error}")
        })
}

/// Whether a schema, or one within it, has `writeOnly`.
fn has_write_only(schema: &Json) -> bool {
    match schema {
        Json::Object(fields) => fields
            .iter()
            .any(|(name, value)| name == "writeOnly" && *value == true || has_write_only(value)),
        Json::Array(items) => items.iter().any(has_write_only),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => false,
    }
}

#[cfg(test)]
mod tests;
