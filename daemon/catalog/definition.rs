//! What models are told of a tool, whichever vendor's they are.

use serde_json::{Map, Value as Json};

use crate::api::v1::{Risk, ToolOptions};

/// A tool.
#[derive(Debug, Clone)]
pub(crate) struct ToolDefinition {
    /// Name that models call it by.
    pub(crate) name: String,
    /// Name for people; empty where there is none.
    pub(crate) title: String,
    /// What it does, and what is worth knowing about it.
    pub(crate) description: String,
    /// JSON Schema of its parameters, an object.
    pub(crate) input_schema: Map<String, Json>,
    /// JSON Schema of its answer, an object, where it has that shape.
    pub(crate) output_schema: Option<Map<String, Json>>,
    /// How it behaves.
    pub(crate) hints: ToolHints,
    /// What it may do, at worst.
    pub(crate) risk: Risk,
    /// Whether somebody is asked, by that risk, before a call of it is made: rules may say otherwise of some.
    pub(crate) requires_approval: bool,
}

/// How a tool behaves, as clients of MCP ask about it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ToolHints {
    /// Whether a call leaves everything as it was.
    pub(crate) read_only: bool,
    /// Whether a call can destroy what was there before it.
    pub(crate) destructive: bool,
    /// Whether repeating a call changes nothing further.
    pub(crate) idempotent: bool,
    /// Whether a call reaches beyond the workspace.
    pub(crate) open_world: bool,
}

/// The name of a risk, as people write it.
pub(crate) fn risk_name(risk: Risk) -> &'static str {
    match risk {
        Risk::ReadOnly => "read_only",
        Risk::SafeWrite => "safe_write",
        Risk::Dangerous | Risk::Unspecified => "dangerous",
    }
}

impl ToolHints {
    /// What is assumed of a tool of which nothing is known.
    pub(crate) const WORST_CASE: Self =
        Self { read_only: false, destructive: true, idempotent: false, open_world: true };

    /// Those of a tool.
    pub(crate) fn from_options(options: &ToolOptions) -> Self {
        Self {
            read_only: options.read_only,
            destructive: options.destructive,
            idempotent: options.idempotent,
            open_world: options.open_world,
        }
    }

    /// Those of a tool that calls others, of which it is one.
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

    /// Every description that a schema has.
    fn undescribed(schema: &Value, place: &str, found: &mut Vec<String>) {
        let properties = schema.get("properties").and_then(Value::as_object);
        for (name, property) in properties.into_iter().flatten() {
            let place = format!("{place}.{name}");
            if property.get("description").is_none() {
                found.push(place.clone());
            }
            undescribed(property, &place, found);
        }
        if let Some(items) = schema.get("items") {
            undescribed(items, place, found);
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
    fn a_file_is_read_with_these_parameters() {
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
