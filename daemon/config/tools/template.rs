//! Arguments of a command with the parameters of a call in them. What a parameter is becomes part of one
//! argument, whatever it holds: no shell ever reads it.
//!
//! | in a template | stands for |
//! |---|---|
//! | `{name}` | the parameter: a text as it is, anything else as JSON. Where it was not given, the whole argument is left out |
//! | `{name...}` | as an argument by itself: each element of a list, as an argument of its own |
//! | `{{`, `}}` | `{`, `}` |

use serde_json::{Map, Value as Json};

/// One argument, or several, as they are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ArgTemplate {
    /// One.
    Single(Vec<TemplateSegment>),
    /// One for each element of a list.
    Spread(String),
}

/// A part of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TemplateSegment {
    /// As it is.
    Text(String),
    /// What a parameter is.
    Parameter(String),
}

impl ArgTemplate {
    /// Reads a template; answers what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if let Some(name) = text.strip_prefix('{').and_then(|text| text.strip_suffix("...}"))
            && is_param_name(name)
        {
            return Ok(Self::Spread(name.to_owned()));
        }
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut rest = text.chars().peekable();
        while let Some(character) = rest.next() {
            match character {
                '{' if rest.next_if_eq(&'{').is_some() => plain.push('{'),
                '}' if rest.next_if_eq(&'}').is_some() => plain.push('}'),
                '{' => {
                    let mut name = String::new();
                    loop {
                        match rest.next() {
                            Some('}') => break,
                            Some(character) => name.push(character),
                            None => {
                                return Err(format!(
                                    "{text:?} has a {{ that nothing closes: write {{{{ for one that stands for itself"
                                ));
                            }
                        }
                    }
                    if !is_param_name(&name) {
                        return Err(format!(
                            "{text:?} has {{{name}}}, which names no parameter: letters, digits and _; {{name...}} stands alone"
                        ));
                    }
                    if !plain.is_empty() {
                        pieces.push(TemplateSegment::Text(std::mem::take(&mut plain)));
                    }
                    pieces.push(TemplateSegment::Parameter(name));
                }
                '}' => {
                    return Err(format!(
                        "{text:?} has a }} that closes nothing: write }}}} for one that stands for itself"
                    ));
                }
                character => plain.push(character),
            }
        }
        if !plain.is_empty() || pieces.is_empty() {
            pieces.push(TemplateSegment::Text(plain));
        }
        Ok(Self::Single(pieces))
    }

    /// The parameters that it names, in their order.
    pub(crate) fn param_names(&self) -> Vec<&str> {
        match self {
            Self::Spread(name) => vec![name],
            Self::Single(pieces) => pieces
                .iter()
                .filter_map(|piece| match piece {
                    TemplateSegment::Parameter(name) => Some(name.as_str()),
                    TemplateSegment::Text(_) => None,
                })
                .collect(),
        }
    }

    /// The text, where no parameter is in it.
    pub(super) fn literal(&self) -> Option<&str> {
        match self {
            Self::Single(pieces) => match pieces.as_slice() {
                [TemplateSegment::Text(text)] => Some(text),
                _ => None,
            },
            Self::Spread(_) => None,
        }
    }

    /// Whether what comes behind it is no option any more (POSIX, Utility Syntax Guideline 10).
    pub(crate) fn is_end_of_options(&self) -> bool {
        self.literal() == Some("--")
    }

    /// The parameter that an argument begins with, which may make an option of it.
    pub(crate) fn leading_param(&self) -> Option<&str> {
        match self {
            Self::Spread(name) => Some(name),
            Self::Single(pieces) => match pieces.first() {
                Some(TemplateSegment::Parameter(name)) => Some(name),
                Some(TemplateSegment::Text(_)) | None => None,
            },
        }
    }

    /// The arguments with these parameters.
    pub(crate) fn render(&self, params: &Map<String, Json>) -> Vec<String> {
        let given = |name: &str| params.get(name).filter(|value| !value.is_null());
        match self {
            Self::Spread(name) => match given(name) {
                Some(Json::Array(items)) => items.iter().map(value_text).collect(),
                Some(other) => vec![value_text(other)],
                None => Vec::new(),
            },
            Self::Single(pieces) => {
                let filled = pieces.iter().map(|piece| match piece {
                    TemplateSegment::Text(text) => Some(text.clone()),
                    TemplateSegment::Parameter(name) => given(name).map(value_text),
                });
                filled.collect::<Option<String>>().into_iter().collect()
            }
        }
    }
}

/// Whether a parameter may be called so.
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

    fn filled(templates: &[&str], params: Json) -> Vec<String> {
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
            // What was not given is left out, with what belongs to it.
            (vec!["--o={o}", "{missing}", "{missing...}", ""], vec![""]),
        ] {
            assert_eq!(filled(&templates, params.clone()), expected);
        }
    }

    #[test]
    fn what_is_no_template_is_told() {
        for text in ["{", "a}", "{a b}", "{}", "x{f...}", "{a"] {
            let told = ArgTemplate::parse(text).unwrap_err();
            assert!(told.contains(text), "{told}");
        }
    }
}
