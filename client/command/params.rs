//! Parameters of a tool that is called by name.

use clap::Args;
use serde_json::{Map, Value};

use crate::{
    cli_error::CliError,
    input::{read_file, utf8_string},
};

/// Parameters as NAME=VALUE, or as one JSON object.
#[derive(Debug, Args)]
pub(super) struct ToolParameters {
    /// Parameters of the tool: `command='make test'`, `timeout_sec=600`. Arrays, objects and null
    /// are written as JSON: `argv:='["make", "test"]'`.
    #[arg(value_name = "NAME=VALUE", conflicts_with = "params")]
    parameters: Vec<String>,
    /// All parameters as one JSON object. `-` reads it from standard input, because other users can
    /// see arguments.
    #[arg(long, value_name = "JSON")]
    params: Option<String>,
}

impl ToolParameters {
    /// Returns the parameters as the text of a JSON object.
    pub(super) fn into_json(self) -> Result<String, CliError> {
        let (params, source) = match self.params {
            Some(params) if params == "-" => {
                (utf8_string(read_file("-".into())?)?, "standard input")
            }
            Some(params) => (params, "--params"),
            None => return Ok(Value::Object(parse_named(&self.parameters)?).to_string()),
        };

        let Err(error) = serde_json::from_str::<Map<String, Value>>(&params) else {
            return Ok(params);
        };
        let text = format!(
            "{source} is not a JSON object: {error}; --params - reads one from standard input"
        );
        Err(CliError::Usage(text))
    }
}

/// Parses NAME=VALUE and NAME:=JSON. The daemon knows which texts are numbers and flags.
fn parse_named(words: &[String]) -> Result<Map<String, Value>, CliError> {
    let mut params = Map::new();
    for word in words {
        let Some((name, value)) = word.split_once('=') else {
            return Err(CliError::Usage(format!(
                "{word:?} is not a parameter: use NAME=VALUE, NAME:=JSON, or --params JSON for all"
            )));
        };
        let (name, value) = match name.strip_suffix(':') {
            None => (name, value.into()),
            Some(name) => {
                let to_error =
                    |error| CliError::Usage(format!("{name}: {value:?} is not JSON: {error}"));
                (name, serde_json::from_str(value).map_err(to_error)?)
            }
        };
        if name.is_empty() {
            return Err(CliError::Usage(format!("{word:?} has no name before the =")));
        }
        if params.insert(name.to_owned(), value).is_some() {
            return Err(CliError::Usage(format!("{name} is given twice")));
        }
    }
    Ok(params)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn parameters_have_names() {
        let words =
            words(&["command=a=b", "timeout_sec=3", r#"argv:=["a=b", 1]"#, "text=:=", "at:=null"]);
        let expected = json!({
            "command": "a=b",
            "timeout_sec": "3",
            "argv": ["a=b", 1],
            "text": ":=",
            "at": null,
        });
        assert_eq!(Value::Object(parse_named(&words).unwrap()), expected);
    }

    #[test]
    fn invalid_parameters_are_reported() {
        for (bad, expected) in [
            (&["command"][..], "\"command\""),
            (&["a=1", "a=2"], "a is given twice"),
            (&["a=1", "a:=2"], "a is given twice"),
            (&["a:=[1"], "a: \"[1\" is not JSON"),
        ] {
            let Err(CliError::Usage(message)) = parse_named(&words(bad)) else {
                panic!("{bad:?}");
            };
            assert!(message.contains(expected), "{message}");
        }
    }
}
