//! Compares the schemas of tools with actual parameters and results.

use std::collections::BTreeMap;

use jig::api::v1::ToolFormat;
use jsonschema::Validator;
use serde_json::Value as Json;

use super::{
    fixture::{Fixture, list_tools},
    scenario::dialect_of,
};

/// The compiled schemas of the tools of a document.
#[derive(Debug)]
pub(super) struct Schemas(BTreeMap<String, Definition>);

#[derive(Debug)]
struct Definition {
    input: Validator,
    /// The schema of results, if the tool has one.
    output: Option<Validator>,
}

impl Schemas {
    pub(super) async fn of(fixture: &Fixture, document: &str) -> Self {
        let dialect = dialect_of(document);
        let listed = list_tools(fixture.daemon(), dialect, ToolFormat::JsonSchema).await;
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

    /// Checks parameters that the tool accepts. Parameters `beyond` the schema must violate it.
    pub(super) fn params_mismatch(
        &self,
        tool: &str,
        params: &Json,
        beyond: bool,
    ) -> Option<String> {
        let error = self.0.get(tool)?.input.iter_errors(params).next();
        match (error, beyond) {
            (Some(error), false) => Some(format!("the schema rejects the parameters: {error}")),
            (None, true) => Some("the schema accepts the parameters".to_owned()),
            (Some(_), true) | (None, false) => None,
        }
    }

    /// The first violation of the schema in a result.
    pub(super) fn answer_mismatch(&self, tool: &str, data: &Json) -> Option<String> {
        let output = self.0.get(tool)?.output.as_ref()?;
        let error = output.iter_errors(data).next()?;
        let path = error.instance_path();
        Some(format!("the schema rejects the result at {path}: {error}"))
    }
}
