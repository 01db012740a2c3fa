//! Tools of the configuration, which commands are: what they take is what their own schemas say.

mod parameters;

use std::time::Duration;

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::{Map, Value as Json};

use super::{
    definition::{Definition, Hints},
    told::Told,
};
use crate::{
    api::v1,
    daemon::{
        config::tools::{Risk, Tool},
        error::{Error, MOST_VIOLATIONS, Violation},
    },
};

/// What an argument may have: as many bytes as the kernel lets one string of `execve(2)` have (`MAX_ARG_STRLEN`),
/// with the NUL at its end.
const LONGEST_ARGUMENT: usize = (128 << 10) - 1;
/// The tool that runs the commands.
pub(super) const RUN: &str = "run";

/// A tool of the configuration.
#[derive(Debug)]
pub(crate) struct CustomTool {
    name: &'static str,
    /// As it was configured.
    written: Tool,
    validator: Validator,
    hints: Hints,
}

/// A call of such a tool, of which nothing is known to be wrong.
#[derive(Debug)]
pub(crate) struct CustomCall {
    /// The program and its arguments.
    pub(crate) argv: Vec<String>,
    /// For those who decide about it.
    pub(crate) told: Told,
    /// The parameters as its record has them.
    pub(crate) shown: Json,
}

impl CustomTool {
    /// As it was configured; the rest is as the `options` of `run` have it.
    pub(super) fn new(written: Tool, options: &v1::ToolOptions) -> Result<Self, String> {
        // A pattern takes as long as its text is, whatever it says; and nothing is fetched.
        let validator = jsonschema::options()
            .with_draft(Draft::Draft202012)
            .should_validate_formats(true)
            .with_pattern_options(PatternOptions::regex())
            .build(&Json::Object(written.schema.clone()))
            .map_err(|error| format!("schema: {}: {error}", error.instance_path()))?;
        let is_read_only = written.risk == Risk::ReadOnly;
        Ok(Self {
            hints: Hints {
                read_only: is_read_only,
                destructive: written.risk == Risk::Dangerous,
                idempotent: is_read_only,
                open_world: options.open_world,
            },
            name: written.name.clone().leak(),
            validator,
            written,
        })
    }

    /// Its name.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// What it may do.
    pub(crate) fn risk(&self) -> v1::Risk {
        match self.written.risk {
            Risk::ReadOnly => v1::Risk::ReadOnly,
            Risk::SafeWrite => v1::Risk::SafeWrite,
            Risk::Dangerous => v1::Risk::Dangerous,
        }
    }

    /// How long it may take, where it is not as long as any command.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.written.timeout
    }

    /// What models are told of it. It answers as `run` does.
    pub(super) fn definition(&self, output: Option<Map<String, Json>>) -> Definition {
        Definition {
            name: self.written.name.clone(),
            title: String::new(),
            description: self.written.description.clone(),
            input: self.written.schema.clone(),
            output,
            hints: self.hints,
            risk: self.risk(),
            requires_approval: false,
        }
    }

    /// Reads the parameters of a call; `plain` says how a path reads without detours. Everything that is wrong with
    /// them is told.
    pub(crate) fn call(
        &self,
        given: &Map<String, Json>,
        plain: impl Fn(&str) -> Option<String>,
    ) -> Result<CustomCall, Error> {
        let params = self.read(given)?;
        let argv = self.argv(&params)?;
        Ok(CustomCall {
            argv,
            told: self.told(given, &params, plain),
            shown: self.recorded(given),
        })
    }

    fn argv(&self, params: &Map<String, Json>) -> Result<Vec<String>, Error> {
        let mut argv = Vec::new();
        let mut violations = Vec::new();
        let mut are_operands = self.written.allow_options;
        for template in &self.written.argv {
            for argument in template.fill(params) {
                let wrong = match template.first() {
                    Some(_) if argument.starts_with('-') && !are_operands => {
                        Some("must not begin with -: the program would take it for an option")
                    }
                    _ if argument.contains('\0') => Some("must not have NUL characters"),
                    _ if argument.len() > LONGEST_ARGUMENT => {
                        Some("makes an argument of the command longer than 131071 bytes")
                    }
                    _ => None,
                };
                if let Some(text) = wrong {
                    let names = template.names();
                    let name = names.first().copied().unwrap_or("argv");
                    violations.push(Violation::new(name, text));
                }
                argv.push(argument);
            }
            are_operands |= template.is_end_of_options();
            if violations.len() > MOST_VIOLATIONS {
                break;
            }
        }
        match violations.is_empty() {
            true => Ok(argv),
            false => Err(Error::invalid(violations)),
        }
    }
}

#[cfg(test)]
mod tests;
