//! Tools of the configuration, which commands are: what they take is what their own schemas say.

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

/// Most bytes of parameters, as JSON: about what the kernel lets a command have (`execve(2)`).
const MAX_PARAMS_BYTES: usize = 2 << 20;
/// Most comparisons of a byte of parameters with a part of the schema: about a second.
const MAX_VALIDATION_WORK: usize = 256 << 20;
/// The tool that runs the commands.
pub(super) const RUN_TOOL: &str = "run";

/// A tool of the configuration.
#[derive(Debug)]
pub(crate) struct CustomTool {
    name: &'static str,
    /// As it was configured.
    config: ToolConfig,
    validator: Validator,
    hints: ToolHints,
    /// Parameters that nobody is to read: their schemas say so of them, or of something in them (`writeOnly`).
    write_only_params: BTreeSet<String>,
}

/// A call of such a tool, of which nothing is known to be wrong.
#[derive(Debug)]
pub(crate) struct CustomCall {
    /// The program and its arguments.
    pub(crate) argv: Vec<String>,
    /// For those who decide about it.
    pub(crate) policy_view: PolicyView,
    /// The parameters as its record has them.
    pub(crate) recorded_params: Json,
}

impl CustomTool {
    /// As it was configured; the rest is as the `options` of `run` have it.
    pub(super) fn new(written: ToolConfig, options: &v1::ToolOptions) -> Result<Self, String> {
        let fields = &written.schema.fields;
        let validator = build_validator(&Json::Object(fields.clone()))?;
        let mut secret = BTreeSet::new();
        for (name, schema) in written.properties().into_iter().flatten() {
            if let Some(default) = schema.get("default") {
                let of_default = build_validator(schema)?;
                if !of_default.is_valid(default) {
                    return Err(format!(
                        "schema.properties.{name}: its default is not what it says of values"
                    ));
                }
            }
            if has_write_only(schema) {
                secret.insert(name.clone());
            }
        }
        let is_read_only = written.risk == ToolRisk::ReadOnly;
        Ok(Self {
            hints: ToolHints {
                read_only: is_read_only,
                destructive: written.risk == ToolRisk::Dangerous,
                idempotent: is_read_only,
                open_world: options.open_world,
            },
            name: written.name.clone().leak(),
            write_only_params: secret,
            validator,
            config: written,
        })
    }

    /// Its name.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// What it may do.
    pub(crate) fn risk(&self) -> v1::Risk {
        match self.config.risk {
            ToolRisk::ReadOnly => v1::Risk::ReadOnly,
            ToolRisk::SafeWrite => v1::Risk::SafeWrite,
            ToolRisk::Dangerous => v1::Risk::Dangerous,
        }
    }

    /// How long it may take, where it is not as long as any command.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.config.timeout
    }

    /// With how much each byte of its parameters may have to be compared.
    pub(crate) fn validation_cost(&self) -> usize {
        self.config.schema.validation_cost
    }

    /// Whether it has a parameter of this name.
    pub(crate) fn has_param(&self, name: &str) -> bool {
        self.param_names().any(|known| known == name)
    }

    /// What models are told of it. It answers as `run` does.
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

    /// Reads the parameters of a call; `plain` says how a path reads without detours. Everything that is wrong with
    /// them is told.
    pub(crate) fn prepare_call(
        &self,
        given: &Map<String, Json>,
        normalize_path: impl Fn(&str) -> Option<String>,
    ) -> Result<CustomCall, Error> {
        let bytes = Json::Object(given.clone()).to_string().len();
        let most = MAX_PARAMS_BYTES.min(MAX_VALIDATION_WORK / self.validation_cost().max(1));
        if bytes > most {
            let text = format!(
                "the parameters of {} have {bytes} bytes as JSON, and may have {most}: give less",
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

/// What compares values with a schema. A pattern takes as long as its text is, whatever it says; and nothing is
/// fetched.
fn build_validator(schema: &Json) -> Result<Validator, String> {
    jsonschema::options()
        .with_draft(Draft::Draft202012)
        .should_validate_formats(true)
        .with_pattern_options(PatternOptions::regex())
        .build(schema)
        .map_err(|error| {
            let place = error.instance_path().to_string().replace('/', ".");
            format!("schema{place}: {error}")
        })
}

/// Whether a schema says of a value, or of something in it, that nobody is to read it.
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
