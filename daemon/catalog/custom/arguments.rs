//! Renders the arguments of a command from the parameters of a call.

use serde_json::{Map, Value as Json};

use super::CustomTool;
use crate::daemon::{
    catalog::policy_text::json_to_text,
    config::tools::{ArgTemplate, MAX_ARGUMENT_BYTES},
    error::{Error, MAX_VIOLATIONS, Violation},
};

impl CustomTool {
    /// The program and its arguments. Reports all violations by parameter name.
    pub(super) fn render_argv(&self, params: &Map<String, Json>) -> Result<Vec<String>, Error> {
        let mut argv = Vec::new();
        let mut violations = Vec::new();
        let mut may_be_options = self.config.allow_options;

        for template in &self.config.argv {
            for (index, argument) in template.render(params).into_iter().enumerate() {
                let problem = if argument.starts_with('-')
                    && template.leading_param().is_some()
                    && !may_be_options
                {
                    Some("must not begin with -: the program would take it for an option")
                } else if argument.contains('\0') {
                    Some("must not have NUL characters")
                } else if argument.len() > MAX_ARGUMENT_BYTES {
                    Some("makes an argument of the command longer than 131071 bytes: give less")
                } else {
                    None
                };
                if let Some(problem) = problem
                    && violations.len() <= MAX_VIOLATIONS
                {
                    let param = offending_param(template, index, &argument, params);
                    violations.push(Violation::new(param, problem));
                }
                argv.push(argument);
            }
            may_be_options |= template.is_end_of_options();
        }

        if violations.is_empty() { Ok(argv) } else { Err(Error::invalid(violations)) }
    }

    /// Translates an error of the command to the name of a parameter: the largest.
    pub(crate) fn explain_command_error(&self, error: Error, params: &Map<String, Json>) -> Error {
        let largest = params.iter().max_by_key(|(_, value)| value.to_string().len());
        let Some((name, _)) = largest.filter(|_| !error.violations.is_empty()) else {
            return error;
        };

        let text = "makes the arguments of the command too many, or too large together: give less";
        Error::invalid_field(name.clone(), text)
    }
}

/// The parameter that makes an argument invalid.
fn offending_param(
    template: &ArgTemplate,
    index: usize,
    argument: &str,
    params: &Map<String, Json>,
) -> String {
    match template {
        ArgTemplate::Spread(name) => match params.get(name) {
            Some(Json::Array(_)) => format!("{name}[{index}]"),
            _ => name.clone(),
        },
        ArgTemplate::Single(_) => {
            let text =
                |name: &str| params.get(name).cloned().map_or_else(String::new, json_to_text);
            let names = template.param_names();
            let has_nul = |name: &&&str| argument.contains('\0') && text(name).contains('\0');
            let is_nonempty = |name: &&&str| !text(name).is_empty();

            let name = if argument.len() > MAX_ARGUMENT_BYTES {
                names.iter().max_by_key(|name| text(name).len())
            } else {
                names.iter().find(has_nul).or_else(|| names.iter().find(is_nonempty))
            };
            name.map_or_else(|| "argv".to_owned(), |name| (*name).to_owned())
        }
    }
}
