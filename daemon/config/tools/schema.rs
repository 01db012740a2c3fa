//! Schemas as tables have them: made one piece, without references, of keywords that are known here. What contains
//! itself would take exponential time to look at, and has no end.

use serde_json::{Map, Value as Json};

use super::template::is_param_name;

/// Largest schema, in bytes as JSON: models are told it with each request.
const MAX_SCHEMA_BYTES: usize = 64 << 10;
/// Most that a value may have to be compared with: schemas, values of enums and names.
const MAX_VALIDATION_COST: usize = 4096;
/// Deepest that schemas may be in one another.
const MAX_SCHEMA_DEPTH: usize = 32;
/// What parameters may say beside what each of them is: vendors take nothing else there, and arguments have no use
/// for parameters without names.
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
/// The only version of JSON Schema.
const META_SCHEMA_URI: &str = "https://json-schema.org/draft/2020-12/schema";
/// Keywords with schemas, by what these are in.
const SUBSCHEMA_KEYWORDS: [&str; 4] = ["additionalProperties", "items", "not", "propertyNames"];
const SUBSCHEMA_MAP_KEYWORDS: [&str; 2] = ["patternProperties", "properties"];
const SUBSCHEMA_LIST_KEYWORDS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Keywords that only tell.
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
/// All others, of draft 2020-12.
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
    /// As models are told it.
    pub(crate) fields: Map<String, Json>,
    /// With how much a value may have to be compared, at most.
    pub(crate) validation_cost: usize,
}

/// Reads a schema: that of an object, without other parameters than those that it names.
pub(super) fn parse_schema(written: &toml::Table, report: &mut impl FnMut(String)) -> ToolSchema {
    let mut root = Map::new();
    for (name, value) in written {
        match toml_to_json(value) {
            Ok(value) => {
                root.insert(name.clone(), value);
            }
            Err(problem) => report(format!("schema.{name}: {problem}")),
        }
    }
    let outermost = RootSchema(root);
    outermost.check(report);
    let mut reader = SchemaInliner {
        root: Json::Object(outermost.0.clone()),
        open_refs: Vec::new(),
        cost: 0,
        problems: Vec::new(),
    };
    let properties = outermost.0.get("properties").and_then(Json::as_object);
    let properties: Map<_, _> = properties
        .into_iter()
        .flatten()
        .map(|(name, schema)| {
            let place = format!("schema.properties.{name}");
            if !schema.is_object() {
                reader.report(&place, "give a table for each parameter");
            }
            (name.clone(), reader.inline(schema, &place, 0))
        })
        .collect();
    let parts = reader.cost + properties.len();
    for problem in reader.problems {
        report(problem);
    }
    for name in properties.keys().filter(|name| !is_param_name(name)) {
        report(format!("schema.properties.{name}: names of parameters have letters, digits and _"));
    }
    let mut fields = Map::new();
    fields.insert("type".to_owned(), "object".into());
    fields.insert("properties".to_owned(), properties.into());
    for name in ["required", "description"] {
        if let Some(value) = outermost.0.get(name) {
            fields.insert(name.to_owned(), value.clone());
        }
    }
    fields.insert("additionalProperties".to_owned(), false.into());
    let bytes = Json::Object(fields.clone()).to_string().len();
    if bytes > MAX_SCHEMA_BYTES {
        report(format!(
            "schema: it has {bytes} bytes as JSON, with what it refers to; {MAX_SCHEMA_BYTES} are the most"
        ));
    }
    ToolSchema { fields, validation_cost: parts }
}

/// What a table says of the parameters together.
struct RootSchema(Map<String, Json>);

impl RootSchema {
    fn check(&self, report: &mut impl FnMut(String)) {
        let fields = &self.0;
        for name in fields.keys() {
            if !ROOT_KEYWORDS.contains(&name.as_str()) {
                report(format!(
                    "schema.{name}: say it of a parameter, in schema.properties: of all of them together there can be {}",
                    ROOT_KEYWORDS.join(", ")
                ));
            }
        }
        let is = |name: &str, wanted: Json| fields.get(name).is_none_or(|value| *value == wanted);
        if !is("type", "object".into()) {
            report("schema.type: parameters are an \"object\"".to_owned());
        }
        if !is("additionalProperties", false.into()) {
            report(
                "schema.additionalProperties: argv has no use for parameters without names"
                    .to_owned(),
            );
        }
        if !is("$schema", META_SCHEMA_URI.into()) {
            report(format!("schema.$schema: there is {META_SCHEMA_URI:?} only"));
        }
        let properties = fields.get("properties");
        if properties.is_some_and(|properties| !properties.is_object()) {
            report("schema.properties: give a table for each parameter".to_owned());
        }
        let required = fields.get("required").map(|names| names.as_array());
        for name in required.flatten().into_iter().flatten() {
            let is_there = name
                .as_str()
                .is_some_and(|name| properties.is_some_and(|all| all.get(name).is_some()));
            if !is_there {
                report(format!("schema.required: {name} is not in schema.properties"));
            }
        }
    }
}

struct SchemaInliner {
    root: Json,
    /// References that lead here.
    open_refs: Vec<String>,
    cost: usize,
    problems: Vec<String>,
}

impl SchemaInliner {
    fn report(&mut self, place: &str, text: &str) {
        self.problems.push(format!("{place}: {text}"));
    }

    /// The same without references.
    fn inline(&mut self, schema: &Json, place: &str, depth: usize) -> Json {
        let Json::Object(schema) = schema else {
            if !schema.is_boolean() {
                self.report(place, "a schema is a table");
            }
            return schema.clone();
        };
        self.cost += 1;
        if self.cost > MAX_VALIDATION_COST || depth > MAX_SCHEMA_DEPTH {
            if self.problems.is_empty() {
                let text = format!(
                    "the schema has more than {MAX_VALIDATION_COST} parts, or more than {MAX_SCHEMA_DEPTH} in one another, with what it refers to"
                );
                self.report(place, &text);
            }
            return Json::Bool(true);
        }
        let mut read = Map::new();
        for (keyword, value) in schema {
            if keyword == "$ref" {
                continue;
            }
            let below = format!("{place}.{keyword}");
            let value = self.inline_keyword(keyword, value, &below, depth);
            read.insert(keyword.clone(), value);
        }
        let Some(reference) = schema.get("$ref") else {
            return read.into();
        };
        let Some(target) = self.resolve_ref(reference, place, depth) else {
            return read.into();
        };
        let Json::Object(mut target) = target else {
            return target;
        };
        if read.keys().all(|name| ANNOTATION_KEYWORDS.contains(&name.as_str())) {
            target.extend(read);
            return target.into();
        }
        read.insert("allOf".to_owned(), Json::Array(vec![target.into()]));
        read.into()
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
                    let text = "is not known here, or is no table or list of schemas: of draft 2020-12, what depends on other values is not";
                    self.report(place, text);
                }
                if let ("enum" | "required", Json::Array(values)) = (keyword, value) {
                    self.cost += values.len();
                }
                value.clone()
            }
        }
    }

    /// What a reference leads to, without references.
    fn resolve_ref(&mut self, reference: &Json, place: &str, depth: usize) -> Option<Json> {
        let reference = reference.as_str().unwrap_or_default().to_owned();
        let target =
            reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer)).cloned();
        let Some(target) = target else {
            let text = format!("$ref {reference:?} leads to nothing in this schema");
            self.report(place, &text);
            return None;
        };
        if self.open_refs.contains(&reference) {
            let text = format!(
                "$ref {reference:?} leads to what contains it: write down as many levels as are meant"
            );
            self.report(place, &text);
            return None;
        }
        self.open_refs.push(reference);
        let read = self.inline(&target, place, depth + 1);
        self.open_refs.pop();
        Some(read)
    }
}

/// A value of the file as JSON.
fn toml_to_json(value: &toml::Value) -> Result<Json, String> {
    Ok(match value {
        toml::Value::String(text) => text.as_str().into(),
        toml::Value::Integer(number) => (*number).into(),
        toml::Value::Float(number) if number.is_finite() => (*number).into(),
        toml::Value::Float(number) => return Err(format!("{number} is no number of JSON")),
        toml::Value::Boolean(flag) => (*flag).into(),
        toml::Value::Datetime(time) => {
            return Err(format!("{time}: JSON has no times; write it as a text"));
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
