//! The definition of a tool for models, independent of the vendor's format.

use serde_json::{Map, Value as Json};

use crate::api::v1::{Risk, ToolOptions};

/// A tool as models see it.
#[derive(Debug, Clone)]
pub(crate) struct ToolDefinition {
    /// Name that models call.
    pub(crate) name: String,
    /// Name for people; may be empty.
    pub(crate) title: String,
    pub(crate) description: String,
    /// JSON Schema of the parameters: an object.
    pub(crate) input_schema: Map<String, Json>,
    /// JSON Schema of the response, if it is an object.
    pub(crate) output_schema: Option<Map<String, Json>>,
    pub(crate) hints: ToolHints,
    /// The worst that the tool may do.
    pub(crate) risk: Risk,
    /// Whether calls need approval by default at this risk. Rules may decide otherwise for some
    /// calls.
    pub(crate) requires_approval: bool,
}

/// Behaviour hints, as MCP defines them (`ToolAnnotations`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct ToolHints {
    /// Whether a call changes nothing.
    pub(crate) read_only: bool,
    /// Whether a call can destroy existing data.
    pub(crate) destructive: bool,
    /// Whether a repeated call has no further effect.
    pub(crate) idempotent: bool,
    /// Whether a call reaches beyond the workspace.
    pub(crate) open_world: bool,
}

/// The name of a risk in configuration and output.
pub(crate) fn risk_name(risk: Risk) -> &'static str {
    match risk {
        Risk::ReadOnly => "read_only",
        Risk::SafeWrite => "safe_write",
        Risk::Dangerous | Risk::Unspecified => "dangerous",
    }
}

impl ToolHints {
    /// The assumption for a tool without declared hints.
    pub(crate) const WORST_CASE: Self =
        Self { read_only: false, destructive: true, idempotent: false, open_world: true };

    pub(crate) fn from_options(options: &ToolOptions) -> Self {
        Self {
            read_only: options.read_only,
            destructive: options.destructive,
            idempotent: options.idempotent,
            open_world: options.open_world,
        }
    }

    /// The hints of a tool that calls both tools.
    pub(crate) fn merge(self, other: Self) -> Self {
        Self {
            read_only: self.read_only && other.read_only,
            destructive: self.destructive || other.destructive,
            idempotent: self.idempotent && other.idempotent,
            open_world: self.open_world || other.open_world,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use crate::daemon::catalog::{Catalog, render::RenderFormat};

    /// Collects the properties without a description.
    fn undescribed(schema: &Value, path: &str, missing: &mut Vec<String>) {
        let properties = schema.get("properties").and_then(Value::as_object);
        for (name, property) in properties.into_iter().flatten() {
            let path = format!("{path}.{name}");
            if property.get("description").is_none() {
                missing.push(path.clone());
            }
            undescribed(property, &path, missing);
        }
        if let Some(items) = schema.get("items") {
            undescribed(items, path, missing);
        }
    }

    #[test]
    fn every_tool_and_every_parameter_is_described() {
        let catalog = Catalog::load().unwrap();
        for name in catalog.tool_names() {
            let definition = catalog.definition(name).unwrap();
            assert!(definition.description.len() > 20, "{name}");
            assert!(!definition.description.contains("Errors:"), "{name}");
            let mut missing = Vec::new();
            undescribed(&definition.input_schema.into(), name, &mut missing);
            undescribed(&definition.output_schema.unwrap().into(), name, &mut missing);
            assert_eq!(missing, Vec::<String>::new());
        }
    }

    #[test]
    fn read_file_parameters_have_the_expected_schema() {
        let catalog = Catalog::load().unwrap();
        let definition = catalog.definition("read_file").unwrap();
        let input = Value::from(definition.input_schema.clone());
        assert_eq!(input["required"], serde_json::json!(["path"]));
        assert_eq!(input["additionalProperties"], false);

        let bytes = &input["properties"]["max_bytes"];
        assert_eq!(
            (&bytes["type"], &bytes["minimum"], &bytes["maximum"]),
            (&"integer".into(), &1.into(), &10_485_760.into())
        );

        let strict = RenderFormat::OpenaiResponses.render(std::slice::from_ref(&definition));
        let strict = &strict[0];
        assert_eq!(strict["strict"], true);

        let all = strict["parameters"]["properties"].as_object().unwrap();
        let required = strict["parameters"]["required"].as_array().unwrap();
        assert_eq!(all.len(), required.len());
        let end = &strict["parameters"]["properties"]["end_line"];
        assert_eq!(end["type"], serde_json::json!(["integer", "null"]));
    }
}
