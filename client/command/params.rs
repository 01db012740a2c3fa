//! Parameters of a tool that is called by its name.

use clap::Args;
use serde_json::{Map, Value};

use crate::{
    cli_error::CliError,
    input::{read_file, utf8_string},
};

/// Parameters, one by one or all at once.
#[derive(Debug, Args)]
pub(super) struct ToolParameters {
    /// Its parameters: `command='make test'`, `timeout_sec=600`; what is no text, number or flag as JSON:
    /// `argv:='["make", "test"]'`.
    #[arg(value_name = "NAME=VALUE", conflicts_with = "params")]
    parameters: Vec<String>,
    /// Its parameters as a JSON object, or `-` to read it from standard input: other users can see
    /// arguments.
    #[arg(long, value_name = "JSON")]
    params: Option<String>,
}

impl ToolParameters {
    /// As a JSON object.
    pub(super) fn into_json(self) -> Result<String, CliError> {
        let (params, of) = match self.params {
            Some(params) if params == "-" => {
                (utf8_string(read_file("-".into())?)?, "standard input")
            }
            Some(params) => (params, "--params"),
            None => return Ok(Value::Object(parse_named(&self.parameters)?).to_string()),
        };
        let Err(error) = serde_json::from_str::<Map<String, Value>>(&params) else {
            return Ok(params);
        };
        let text =
            format!("{of} is no JSON object: {error}; --params - reads one from standard input");
        Err(CliError::Usage(text))
    }
}

/// Parameters as they were named. The daemon knows which of the texts are numbers and flags.
fn parse_named(words: &[String]) -> Result<Map<String, Value>, CliError> {
    let mut params = Map::new();
    for word in words {
        let Some((name, value)) = word.split_once('=') else {
            return Err(CliError::Usage(format!(
                "{word:?} is no parameter: give NAME=VALUE, NAME:=JSON, or all as --params JSON"
            )));
        };
        let (name, value) = match name.strip_suffix(':') {
            None => (name, value.into()),
            Some(name) => {
                let fails =
                    |error| CliError::Usage(format!("{name}: {value:?} is no JSON: {error}"));
                (name, serde_json::from_str(value).map_err(fails)?)
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
    fn what_is_no_parameter_is_named() {
        for (bad, told) in [
            (&["command"][..], "\"command\""),
            (&["a=1", "a=2"], "a is given twice"),
            (&["a=1", "a:=2"], "a is given twice"),
            (&["a:=[1"], "a: \"[1\" is no JSON"),
        ] {
            let Err(CliError::Usage(message)) = parse_named(&words(bad)) else {
                panic!("{bad:?}");
            };
            assert!(message.contains(told), "{message}");
        }
    }
}
