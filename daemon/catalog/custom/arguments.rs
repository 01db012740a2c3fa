//! The arguments of a command with the parameters of a call in them.

use serde_json::{Map, Value as Json};

use super::CustomTool;
use crate::daemon::{
    catalog::told::as_text,
    config::tools::{LONGEST_ARGUMENT, Template},
    error::{Error, MOST_VIOLATIONS, Violation},
};

impl CustomTool {
    /// The program and its arguments. Everything that is wrong with them is told by the names of parameters.
    pub(super) fn argv(&self, params: &Map<String, Json>) -> Result<Vec<String>, Error> {
        let mut argv = Vec::new();
        let mut violations = Vec::new();
        let mut may_be_options = self.written.allow_options;
        for template in &self.written.argv {
            for (index, argument) in template.fill(params).into_iter().enumerate() {
                let wrong =
                    if argument.starts_with('-') && template.first().is_some() && !may_be_options {
                        Some("must not begin with -: the program would take it for an option")
                    } else if argument.contains('\0') {
                        Some("must not have NUL characters")
                    } else if argument.len() > LONGEST_ARGUMENT {
                        Some("makes an argument of the command longer than 131071 bytes: give less")
                    } else {
                        None
                    };
                if let Some(text) = wrong
                    && violations.len() <= MOST_VIOLATIONS
                {
                    let place = place(template, index, &argument, params);
                    violations.push(Violation::new(place, text));
                }
                argv.push(argument);
            }
            may_be_options |= template.is_end_of_options();
        }
        match violations.is_empty() {
            true => Ok(argv),
            false => Err(Error::invalid(violations)),
        }
    }

    /// What is wrong with the command, by the names of parameters.
    pub(crate) fn told_of_command(&self, error: Error, params: &Map<String, Json>) -> Error {
        let largest = params.iter().max_by_key(|(_, value)| value.to_string().len());
        let Some((name, _)) = largest.filter(|_| !error.violations.is_empty()) else {
            return error;
        };
        let text = "makes the arguments of the command too many, or too large together: give less";
        Error::invalid_field(name.clone(), text)
    }
}

/// What parameter has made an argument what it is.
fn place(template: &Template, index: usize, argument: &str, params: &Map<String, Json>) -> String {
    match template {
        Template::Each(name) => match params.get(name) {
            Some(Json::Array(_)) => format!("{name}[{index}]"),
            _ => name.clone(),
        },
        Template::One(_) => {
            let text = |name: &str| {
                let value = params.get(name).cloned();
                value.map_or_else(String::new, as_text)
            };
            let names = template.names();
            let has_nul = |name: &&&str| argument.contains('\0') && text(name).contains('\0');
            let is_there = |name: &&&str| !text(name).is_empty();
            let mut found = names.iter();
            let name = match argument.len() > LONGEST_ARGUMENT {
                true => names.iter().max_by_key(|name| text(name).len()),
                false => found.find(has_nul).or_else(|| names.iter().find(is_there)),
            };
            name.map_or_else(|| "argv".to_owned(), |name| (*name).to_owned())
        }
    }
}
