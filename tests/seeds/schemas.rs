//! Whether the definitions of tools are true: what their schemas say of parameters and answers.

use std::collections::BTreeMap;

use jig::api::v1::ToolFormat;
use jsonschema::Validator;
use serde_json::Value as Json;

use super::{
    fixture::{Fixture, list_tools},
    scenario::dialect_of,
};

/// The definitions of the tools of a document.
#[derive(Debug)]
pub(super) struct Schemas(BTreeMap<String, Definition>);

#[derive(Debug)]
struct Definition {
    input: Validator,
    /// Where answers are described.
    output: Option<Validator>,
}

impl Schemas {
    /// As the daemon lists them.
    pub(super) async fn of(stage: &Fixture, document: &str) -> Self {
        let dialect = dialect_of(document);
        let listed = list_tools(stage.daemon(), dialect, ToolFormat::JsonSchema).await;
        let tools: Vec<Json> = serde_json::from_str(&listed.tools_json).unwrap();
        let definitions = tools.iter().map(|tool| {
            let validator = |schema| jsonschema::validator_for(schema).unwrap();
            let definition = Definition {
                input: validator(&tool["input_schema"]),
                output: tool.get("output_schema").map(validator),
            };
            (tool["name"].as_str().unwrap().to_owned(), definition)
        });
        Self(definitions.collect())
    }

    /// Whether parameters that the tool takes fit, unless they are `beyond` what its schema says, which they must be
    /// then.
    pub(super) fn params_mismatch(
        &self,
        tool: &str,
        params: &Json,
        beyond: bool,
    ) -> Option<String> {
        let error = self.0.get(tool)?.input.iter_errors(params).next();
        match (error, beyond) {
            (Some(error), false) => Some(format!("parameters that its schema refuses: {error}")),
            (None, true) => Some("parameters that are not beyond its schema".to_owned()),
            (Some(_), true) | (None, false) => None,
        }
    }

    /// What is not as its schema says in what a tool has answered.
    pub(super) fn answer_mismatch(&self, tool: &str, data: &Json) -> Option<String> {
        let output = self.0.get(tool)?.output.as_ref()?;
        let error = output.iter_errors(data).next()?;
        let place = error.instance_path();
        Some(format!("an answer that its schema refuses at {place}: {error}"))
    }
}
