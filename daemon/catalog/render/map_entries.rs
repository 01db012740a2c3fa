//! Maps as lists of entries, for vendors whose schemas must name all keys of an object.

use serde_json::{Map, Value, json};

/// The schema of a list of entries, in place of a map with these values. The daemon accepts such
/// lists. `map` is the schema of the map.
pub(super) fn map_as_entry_list(
    values: &Map<String, Value>,
    map: &Map<String, Value>,
) -> Map<String, Value> {
    let mut list = Map::new();
    if let Some(description) = map.get("description") {
        list.insert("description".to_owned(), description.clone());
    }
    if let Some(max) = map.get("maxProperties") {
        list.insert("maxItems".to_owned(), max.clone());
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
