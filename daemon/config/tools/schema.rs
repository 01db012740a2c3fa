//! JSON Schemas of custom tools: checks their keywords and inlines their references.
//!
//! Schemas that contain themselves are rejected. Inlining them would not end, and validation could
//! take exponential time.

use serde_json::{Map, Value as Json};

use super::template::is_param_name;

/// Size of a schema as JSON. Each request to a model contains it.
const MAX_SCHEMA_BYTES: usize = 64 << 10;
/// Limit of the schemas, enum values and names that a value can be compared with.
const MAX_COMPARISONS_PER_VALUE: usize = 4096;
const MAX_SCHEMA_DEPTH: usize = 32;
/// Keywords of the root schema. Vendors accept no others there, and arguments cannot use parameters
/// without names.
const ROOT_KEYWORDS: [&str; 9] = [
    "$comment",
    "$defs",
    "$schema",
    "additionalProperties",
    "definitions",
    "description",
    "properties",
    "required",
    "type",
];
/// The only accepted version of JSON Schema.
const META_SCHEMA_URI: &str = "https://json-schema.org/draft/2020-12/schema";
/// Keywords whose value is a schema.
const SUBSCHEMA_KEYWORDS: [&str; 4] = ["additionalProperties", "items", "not", "propertyNames"];
/// Keywords whose value is a table of schemas.
const SUBSCHEMA_MAP_KEYWORDS: [&str; 2] = ["patternProperties", "properties"];
/// Keywords whose value is a list of schemas.
const SUBSCHEMA_LIST_KEYWORDS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Keywords that do not restrict values.
const ANNOTATION_KEYWORDS: [&str; 9] = [
    "$comment",
    "default",
    "deprecated",
    "description",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
    "format",
];
/// The other accepted keywords of draft 2020-12.
const ASSERTION_KEYWORDS: [&str; 20] = [
    "type",
    "enum",
    "const",
    "required",
    "dependentRequired",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minProperties",
    "maxProperties",
    "contentEncoding",
    "contentMediaType",
];

/// The schema of the parameters of a tool.
#[derive(Debug, Clone)]
pub(crate) struct ToolSchema {
    /// The schema for models, without references.
    pub(crate) fields: Map<String, Json>,
    /// Number of schemas, enum values and names that a value can be compared with.
    pub(crate) validation_cost: usize,
}

/// Checks the schema of the parameters of a tool: an object without additional properties.
pub(super) fn parse_schema(table: &toml::Table, report: &mut impl FnMut(String)) -> ToolSchema {
    let root = parse_root(table, report);
    root.check(report);

    let (properties, validation_cost) = inline_properties(&root, report);
    for name in properties.keys().filter(|name| !is_param_name(name)) {
        report(format!("schema.properties.{name}: names of parameters have letters, digits and _"));
    }

    let fields = close_schema(&root, properties);
    let bytes = Json::Object(fields.clone()).to_string().len();
    if bytes > MAX_SCHEMA_BYTES {
        report(format!(
            "schema: it has {bytes} bytes as JSON with its references inlined; at most {MAX_SCHEMA_BYTES} are allowed"
        ));
    }
    ToolSchema { fields, validation_cost }
}

fn parse_root(table: &toml::Table, report: &mut impl FnMut(String)) -> RootSchema {
    let mut root = Map::new();
    for (name, value) in table {
        match toml_to_json(value) {
            Ok(value) => {
                root.insert(name.clone(), value);
            }
            Err(problem) => report(format!("schema.{name}: {problem}")),
        }
    }
    RootSchema(root)
}

/// Returns the schemas of the parameters without references, and the cost of validation.
fn inline_properties(
    root: &RootSchema,
    report: &mut impl FnMut(String),
) -> (Map<String, Json>, usize) {
    let mut inliner = SchemaInliner {
        root: Json::Object(root.0.clone()),
        open_refs: Vec::new(),
        cost: 0,
        problems: Vec::new(),
    };
    let properties: Map<_, _> = root
        .0
        .get("properties")
        .and_then(Json::as_object)
        .into_iter()
        .flatten()
        .map(|(name, schema)| {
            let path = format!("schema.properties.{name}");
            if !schema.is_object() {
                inliner.report(&path, "give a table for each parameter");
            }
            (name.clone(), inliner.inline(schema, &path, 0))
        })
        .collect();

    let validation_cost = inliner.cost + properties.len();
    for problem in inliner.problems {
        report(problem);
    }
    (properties, validation_cost)
}

/// Returns the schema of an object with these properties and no others.
fn close_schema(root: &RootSchema, properties: Map<String, Json>) -> Map<String, Json> {
    let mut fields = Map::new();
    fields.insert("type".to_owned(), "object".into());
    fields.insert("properties".to_owned(), properties.into());
    for name in ["required", "description"] {
        if let Some(value) = root.0.get(name) {
            fields.insert(name.to_owned(), value.clone());
        }
    }
    fields.insert("additionalProperties".to_owned(), false.into());
    fields
}

/// The root schema, of all parameters together.
struct RootSchema(Map<String, Json>);

impl RootSchema {
    fn check(&self, report: &mut impl FnMut(String)) {
        let fields = &self.0;
        for name in fields.keys() {
            if !ROOT_KEYWORDS.contains(&name.as_str()) {
                report(format!(
                    "schema.{name}: not allowed for all parameters together, only for one of them in schema.properties; allowed are {}",
                    ROOT_KEYWORDS.join(", ")
                ));
            }
        }
        let is = |name: &str, wanted: Json| fields.get(name).is_none_or(|value| *value == wanted);
        if !is("type", "object".into()) {
            report("schema.type: must be \"object\"".to_owned());
        }
        if !is("additionalProperties", false.into()) {
            report(
                "schema.additionalProperties: must be false, because argv names all parameters"
                    .to_owned(),
            );
        }
        if !is("$schema", META_SCHEMA_URI.into()) {
            report(format!("schema.$schema: must be {META_SCHEMA_URI:?}"));
        }
        let properties = fields.get("properties");
        if properties.is_some_and(|properties| !properties.is_object()) {
            report("schema.properties: give a table for each parameter".to_owned());
        }
        let required = fields.get("required").map(|names| names.as_array());
        for name in required.flatten().into_iter().flatten() {
            let is_defined = name
                .as_str()
                .is_some_and(|name| properties.is_some_and(|all| all.get(name).is_some()));
            if !is_defined {
                report(format!("schema.required: {name} is not in schema.properties"));
            }
        }
    }
}

/// Replaces references by the schemas that they refer to.
struct SchemaInliner {
    root: Json,
    /// References that are being inlined, outermost first.
    open_refs: Vec<String>,
    /// Schemas, enum values and names so far.
    cost: usize,
    problems: Vec<String>,
}

impl SchemaInliner {
    fn report(&mut self, place: &str, text: &str) {
        self.problems.push(format!("{place}: {text}"));
    }

    /// Returns `schema` without references. `place` is its path in the file.
    fn inline(&mut self, schema: &Json, place: &str, depth: usize) -> Json {
        let Json::Object(schema) = schema else {
            if !schema.is_boolean() {
                self.report(place, "a schema must be a table");
            }
            return schema.clone();
        };
        self.cost += 1;
        if self.cost > MAX_COMPARISONS_PER_VALUE || depth > MAX_SCHEMA_DEPTH {
            if self.problems.is_empty() {
                let text = format!(
                    "the schema has more than {MAX_COMPARISONS_PER_VALUE} parts or {MAX_SCHEMA_DEPTH} levels with its references inlined"
                );
                self.report(place, &text);
            }
            return Json::Bool(true);
        }

        let mut inlined = Map::new();
        for (keyword, value) in schema {
            if keyword == "$ref" {
                continue;
            }
            let below = format!("{place}.{keyword}");
            let value = self.inline_keyword(keyword, value, &below, depth);
            inlined.insert(keyword.clone(), value);
        }

        let Some(reference) = schema.get("$ref") else {
            return inlined.into();
        };
        let Some(target) = self.resolve_ref(reference, place, depth) else {
            return inlined.into();
        };
        let Json::Object(mut target) = target else {
            return target;
        };
        if inlined.keys().all(|name| ANNOTATION_KEYWORDS.contains(&name.as_str())) {
            target.extend(inlined);
            return target.into();
        }
        inlined.insert("allOf".to_owned(), Json::Array(vec![target.into()]));
        inlined.into()
    }

    fn inline_keyword(&mut self, keyword: &str, value: &Json, place: &str, depth: usize) -> Json {
        match value {
            _ if SUBSCHEMA_KEYWORDS.contains(&keyword) => self.inline(value, place, depth + 1),
            Json::Object(named) if SUBSCHEMA_MAP_KEYWORDS.contains(&keyword) => {
                let read = named.iter().map(|(name, schema)| {
                    let place = format!("{place}.{name}");
                    (name.clone(), self.inline(schema, &place, depth + 1))
                });
                Json::Object(read.collect())
            }
            Json::Array(several) if SUBSCHEMA_LIST_KEYWORDS.contains(&keyword) => {
                let read = several.iter().enumerate().map(|(index, schema)| {
                    self.inline(schema, &format!("{place}[{index}]"), depth + 1)
                });
                read.collect()
            }
            Json::Null
            | Json::Bool(_)
            | Json::Number(_)
            | Json::String(_)
            | Json::Array(_)
            | Json::Object(_) => {
                let is_known =
                    ANNOTATION_KEYWORDS.contains(&keyword) || ASSERTION_KEYWORDS.contains(&keyword);
                if !is_known {
                    let text = "is not supported, or is not a table or list of schemas: keywords of draft 2020-12 that depend on other values are not supported";
                    self.report(place, text);
                }
                if let ("enum" | "required", Json::Array(values)) = (keyword, value) {
                    self.cost += values.len();
                }
                value.clone()
            }
        }
    }

    /// Returns the target of `$ref` without references.
    fn resolve_ref(&mut self, reference: &Json, place: &str, depth: usize) -> Option<Json> {
        let reference = reference.as_str().unwrap_or_default().to_owned();
        let target =
            reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer)).cloned();
        let Some(target) = target else {
            let text = format!("$ref {reference:?} has no target in this schema");
            self.report(place, &text);
            return None;
        };
        if self.open_refs.contains(&reference) {
            let text = format!(
                "$ref {reference:?} refers to a schema that contains it: write as many levels as needed"
            );
            self.report(place, &text);
            return None;
        }

        self.open_refs.push(reference);
        let inlined = self.inline(&target, place, depth + 1);
        self.open_refs.pop();
        Some(inlined)
    }
}

/// Converts a TOML value to JSON.
fn toml_to_json(value: &toml::Value) -> Result<Json, String> {
    Ok(match value {
        toml::Value::String(text) => text.as_str().into(),
        toml::Value::Integer(number) => (*number).into(),
        toml::Value::Float(number) if number.is_finite() => (*number).into(),
        toml::Value::Float(number) => return Err(format!("{number} is not a number of JSON")),
        toml::Value::Boolean(flag) => (*flag).into(),
        toml::Value::Datetime(time) => {
            return Err(format!("{time}: JSON has no times; write it as a string"));
        }
        toml::Value::Array(items) => {
            Json::Array(items.iter().map(toml_to_json).collect::<Result<_, _>>()?)
        }
        toml::Value::Table(fields) => {
            let fields =
                fields.iter().map(|(name, value)| Ok((name.clone(), toml_to_json(value)?)));
            Json::Object(fields.collect::<Result<_, String>>()?)
        }
    })
}
