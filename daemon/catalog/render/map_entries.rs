//! Objects whose keys are not known, for vendors whose schemas have to name them all.

use serde_json::{Map, Value, json};

/// Such an object, with these values, as a list of its entries: the daemon takes it so, too.
pub(super) fn map_as_entry_list(
    values: &Map<String, Value>,
    of: &Map<String, Value>,
) -> Map<String, Value> {
    let mut list = Map::new();
    if let Some(description) = of.get("description") {
        list.insert("description".to_owned(), description.clone());
    }
    if let Some(most) = of.get("maxProperties") {
        list.insert("maxItems".to_owned(), most.clone());
    }
    list.insert("type".to_owned(), "array".into());
    list.insert(
        "items".to_owned(),
        json!({
            "type": "object",
            "properties": {"key": {"type": "string"}, "value": values},
            "required": ["key", "value"],
            "additionalProperties": false,
        }),
    );
    list
}
