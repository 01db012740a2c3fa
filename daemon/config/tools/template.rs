//! Templates of command arguments, with placeholders for the parameters of a call.
//!
//! A parameter becomes part of one argument, whatever its value: no shell reads it.
//!
//! | in a template | expands to |
//! |---|---|
//! | `{name}` | the parameter: text as it is, anything else as JSON |
//! | `{name...}`, as a whole argument | one argument for each element of a list |
//! | `{{`, `}}` | `{`, `}` |
//!
//! An argument with a parameter that the call does not give is omitted.

use serde_json::{Map, Value as Json};

/// A template of one or several arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ArgTemplate {
    /// One argument.
    Single(Vec<TemplateSegment>),
    /// One argument for each element of the list parameter of this name.
    Spread(String),
}

/// A part of an argument template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TemplateSegment {
    Text(String),
    /// The value of the parameter of this name.
    Parameter(String),
}

impl ArgTemplate {
    /// Parses a template.
    ///
    /// # Errors
    ///
    /// Returns the problem of an invalid template.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if let Some(name) = text.strip_prefix('{').and_then(|text| text.strip_suffix("...}"))
            && is_param_name(name)
        {
            return Ok(Self::Spread(name.to_owned()));
        }

        let mut segments = Vec::new();
        let mut literal = String::new();
        let mut rest = text.chars().peekable();
        while let Some(character) = rest.next() {
            match character {
                '{' if rest.next_if_eq(&'{').is_some() => literal.push('{'),
                '}' if rest.next_if_eq(&'}').is_some() => literal.push('}'),
                '{' => {
                    let name = parse_param(&mut rest, text)?;
                    if !literal.is_empty() {
                        segments.push(TemplateSegment::Text(std::mem::take(&mut literal)));
                    }
                    segments.push(TemplateSegment::Parameter(name));
                }
                '}' => {
                    return Err(format!(
                        "{text:?} has a }} without a {{: write }}}} for a literal }}"
                    ));
                }
                character => literal.push(character),
            }
        }

        if !literal.is_empty() || segments.is_empty() {
            segments.push(TemplateSegment::Text(literal));
        }
        Ok(Self::Single(segments))
    }

    /// Returns the names of the parameters in the template, in their order.
    pub(crate) fn param_names(&self) -> Vec<&str> {
        match self {
            Self::Spread(name) => vec![name],
            Self::Single(segments) => segments
                .iter()
                .filter_map(|segment| match segment {
                    TemplateSegment::Parameter(name) => Some(name.as_str()),
                    TemplateSegment::Text(_) => None,
                })
                .collect(),
        }
    }

    /// Returns the text of a template without parameters.
    pub(super) fn literal(&self) -> Option<&str> {
        match self {
            Self::Single(segments) => match segments.as_slice() {
                [TemplateSegment::Text(text)] => Some(text),
                _ => None,
            },
            Self::Spread(_) => None,
        }
    }

    /// Returns true for `--`, which ends the options (POSIX, Utility Syntax Guideline 10).
    pub(crate) fn is_end_of_options(&self) -> bool {
        self.literal() == Some("--")
    }

    /// Returns the parameter at the start of the argument. Its value could make it an option.
    pub(crate) fn leading_param(&self) -> Option<&str> {
        match self {
            Self::Spread(name) => Some(name),
            Self::Single(segments) => match segments.first() {
                Some(TemplateSegment::Parameter(name)) => Some(name),
                Some(TemplateSegment::Text(_)) | None => None,
            },
        }
    }

    /// Returns the arguments for these parameters.
    pub(crate) fn render(&self, params: &Map<String, Json>) -> Vec<String> {
        let given = |name: &str| params.get(name).filter(|value| !value.is_null());
        match self {
            Self::Spread(name) => match given(name) {
                Some(Json::Array(items)) => items.iter().map(value_text).collect(),
                Some(other) => vec![value_text(other)],
                None => Vec::new(),
            },
            Self::Single(segments) => {
                let texts = segments.iter().map(|segment| match segment {
                    TemplateSegment::Text(text) => Some(text.clone()),
                    TemplateSegment::Parameter(name) => given(name).map(value_text),
                });
                texts.collect::<Option<String>>().into_iter().collect()
            }
        }
    }
}

/// Reads the name of a parameter up to its `}`. `text` is the whole template, for errors.
fn parse_param(rest: &mut impl Iterator<Item = char>, text: &str) -> Result<String, String> {
    let mut name = String::new();
    loop {
        match rest.next() {
            Some('}') if is_param_name(&name) => return Ok(name),
            Some('}') => {
                return Err(format!(
                    "{text:?} has {{{name}}}, which is not a parameter name: use letters, digits and _; {{name...}} must be a whole argument"
                ));
            }
            Some(character) => name.push(character),
            None => {
                return Err(format!("{text:?} has a {{ without a }}: write {{{{ for a literal {{"));
            }
        }
    }
}

/// Whether a parameter can have this name.
pub(super) fn is_param_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn value_text(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_) => {
            value.to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(templates: &[&str], params: Json) -> Vec<String> {
        let templates = templates.iter().map(|text| ArgTemplate::parse(text).unwrap());
        templates.flat_map(|template| template.render(params.as_object().unwrap())).collect()
    }

    #[test]
    fn parameters_are_parts_of_arguments() {
        let params =
            json!({"q": "a b; rm -rf / $(x) \"", "n": 3, "f": ["x y", "-z", 1], "o": null});
        for (templates, expected) in [
            (vec!["tool", "--query={q}"], vec!["tool", "--query=a b; rm -rf / $(x) \""]),
            (vec!["{n}{n}", "{{n}}"], vec!["33", "{n}"]),
            (vec!["{f...}"], vec!["x y", "-z", "1"]),
            (vec!["{f}"], vec!["[\"x y\",\"-z\",1]"]),
            // An argument with a missing parameter is omitted.
            (vec!["--o={o}", "{missing}", "{missing...}", ""], vec![""]),
        ] {
            assert_eq!(render(&templates, params.clone()), expected);
        }
    }

    #[test]
    fn invalid_templates_are_reported() {
        for text in ["{", "a}", "{a b}", "{}", "x{f...}", "{a"] {
            let problem = ArgTemplate::parse(text).unwrap_err();
            assert!(problem.contains(text), "{problem}");
        }
    }
}
