//! The rules of fields: defaults and limits, as their options in the protos declare them.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "kinds of values without rules, in enums of another crate"
)]

use std::collections::HashMap;

use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor,
    SerializeOptions, Value,
};

use crate::{
    api::v1::{FieldRules, field_rules::DefaultValue},
    daemon::error::{Error, MAX_VIOLATIONS, Violation},
};

/// Largest JSON of a request's parameters in a record.
pub(super) const MAX_RECORDED_PARAMS_BYTES: usize = 16 * 1024;

/// A request after the validation of its fields, each by itself.
#[derive(Debug)]
pub(super) struct MessageValidation<T> {
    /// The request, with defaults filled in.
    pub(super) request: T,
    /// The explicit fields for a record: JSON without secrets and content of files.
    pub(super) params: serde_json::Value,
    /// Fields that are invalid.
    pub(super) violations: Vec<Violation>,
    /// The explicit fields. Present with `keep_explicit`.
    pub(super) explicit: Option<DynamicMessage>,
    /// The explicit fields, encoded.
    pub(super) encoded: Vec<u8>,
}

/// The rules of the fields of a message.
#[derive(Debug)]
pub(super) struct MessageRules {
    message: MessageDescriptor,
    pub(super) fields: Vec<FieldSpec>,
}

/// A field that has rules, or whose message has fields with rules.
#[derive(Debug)]
pub(super) struct FieldSpec {
    pub(super) descriptor: FieldDescriptor,
    pub(super) rules: FieldRules,
    /// The rules of its message, if that belongs to the contract.
    pub(super) inner: Option<MessageRules>,
}

impl MessageRules {
    /// Reads the rules of a message.
    pub(super) fn from_descriptor(pool: &DescriptorPool, message: &MessageDescriptor) -> Self {
        let extension = pool.get_extension_by_name("jig.v1.field");
        let rules = |field: &FieldDescriptor| {
            let extension = extension.as_ref()?;
            let options = field.options();
            let value =
                options.has_extension(extension).then(|| options.get_extension(extension))?;
            value.as_message()?.transcode_to().ok()
        };

        let fields = message.fields().filter_map(|field| {
            let inner = match field.kind() {
                Kind::Message(inner) if inner.package_name() == "jig.v1" && !field.is_map() => {
                    Some(Self::from_descriptor(pool, &inner))
                }
                _ => None,
            };
            let rules = rules(&field);

            let is_relevant =
                rules.is_some() || inner.is_some() || matches!(field.kind(), Kind::Enum(_));
            is_relevant.then(|| FieldSpec {
                descriptor: field,
                rules: rules.unwrap_or_default(),
                inner,
            })
        });

        Self { message: message.clone(), fields: fields.collect() }
    }

    /// The message that has these rules.
    pub(super) fn message(&self) -> &MessageDescriptor {
        &self.message
    }

    /// The rules of a field, if it has any.
    pub(super) fn field(&self, descriptor: &FieldDescriptor) -> Option<&FieldSpec> {
        self.fields.iter().find(|field| field.descriptor == *descriptor)
    }

    /// Absent fields whose defaults policy rules match, with these defaults.
    pub(super) fn policy_defaults(
        &self,
        message: &DynamicMessage,
    ) -> Vec<(FieldDescriptor, Value)> {
        self.fields
            .iter()
            .filter(|field| {
                field.rules.policy_includes_default && !message.has_field(&field.descriptor)
            })
            .filter_map(|field| {
                let default = declared_default(&field.descriptor, &field.rules)?;
                Some((field.descriptor.clone(), default))
            })
            .collect()
    }

    /// The explicit path fields, with their values.
    pub(super) fn explicit_paths<'a>(
        &'a self,
        message: &'a DynamicMessage,
    ) -> impl Iterator<Item = (&'a FieldDescriptor, String)> {
        self.fields
            .iter()
            .filter(|field| field.rules.path)
            .map(|field| &field.descriptor)
            .filter(|field| message.has_field(field))
            .filter_map(|field| Some((field, message.get_field(field).as_str()?.to_owned())))
    }

    /// The request as a dynamic message, to access its fields by name.
    pub(super) fn reflect(&self, request: &impl Message) -> Result<DynamicMessage, Error> {
        self.decode(&request.encode_to_vec())
    }

    /// Decodes a request as a dynamic message.
    pub(super) fn decode(&self, encoded: &[u8]) -> Result<DynamicMessage, Error> {
        let mut message =
            DynamicMessage::decode(self.message.clone(), encoded).map_err(Error::internal)?;
        self.clear_unspecified_enums(&mut message);
        Ok(message)
    }

    /// Clears enum fields with the first value, `UNSPECIFIED`. They count as missing, so their
    /// defaults apply, also in policy rules.
    fn clear_unspecified_enums(&self, message: &mut DynamicMessage) {
        for field in &self.fields {
            let descriptor = &field.descriptor;
            if !message.has_field(descriptor) {
                continue;
            }

            match (message.get_field_mut(descriptor), &field.inner) {
                (Value::EnumNumber(0), _) => message.clear_field(descriptor),
                (Value::List(items), Some(inner)) => {
                    for item in items.iter_mut().filter_map(Value::as_message_mut) {
                        inner.clear_unspecified_enums(item);
                    }
                }
                (Value::Message(item), Some(inner)) => inner.clear_unspecified_enums(item),
                _ => {}
            }
        }
    }

    /// Validates `request` and fills in defaults. `keep_explicit` keeps the explicit fields.
    pub(super) fn validate<T: Message + Default>(
        &self,
        request: T,
        keep_explicit: bool,
    ) -> Result<MessageValidation<T>, Error> {
        let encoded = request.encode_to_vec();
        let mut message = self.decode(&encoded)?;
        let violations = self.violations(&message);

        // An invalid request is neither recorded nor authorized.
        let is_valid = violations.is_empty();
        let params = if is_valid {
            self.redact_for_record(&message, self.redacted_json(&message)?)
        } else {
            serde_json::Value::Null
        };
        let explicit = (keep_explicit && is_valid).then(|| message.clone());
        let request = if self.apply_defaults(&mut message) {
            message.transcode_to().map_err(Error::internal)?
        } else {
            request
        };

        Ok(MessageValidation { request, params, violations, explicit, encoded })
    }

    pub(super) fn violations(&self, message: &DynamicMessage) -> Vec<Violation> {
        let mut violations = Vec::new();
        self.check_fields(message, "", &mut violations);
        violations
    }

    fn check_fields(
        &self,
        message: &DynamicMessage,
        prefix: &str,
        violations: &mut Vec<Violation>,
    ) {
        for field in &self.fields {
            let name = || format!("{prefix}{}", field.descriptor.name());
            if !message.has_field(&field.descriptor) {
                if field.rules.required {
                    violations.push(Violation::new(name(), required_text(&field.rules)));
                }
                continue;
            }

            let (name, value) = (name(), message.get_field(&field.descriptor));
            check_field(&value, field, &name, violations);

            let Some(inner) = &field.inner else { continue };
            if is_full(violations) {
                return;
            }

            match value.as_ref() {
                Value::List(items) if is_within_max_items(items.len(), &field.rules) => {
                    for (index, item) in items.iter().enumerate() {
                        if is_full(violations) {
                            return;
                        }
                        if let Some(item) = item.as_message() {
                            inner.check_fields(item, &format!("{name}[{index}]."), violations);
                        }
                    }
                }
                Value::Message(item) => {
                    inner.check_fields(item, &format!("{name}."), violations);
                }
                _ => {}
            }
        }
    }

    /// Fills in the defaults of absent fields. Returns whether there were any.
    fn apply_defaults(&self, message: &mut DynamicMessage) -> bool {
        let mut changed = false;
        for field in &self.fields {
            let descriptor = &field.descriptor;
            if !message.has_field(descriptor) {
                if let Some(default) = declared_default(descriptor, &field.rules) {
                    message.set_field(descriptor, default);
                    changed = true;
                }
            } else if let Some(inner) = &field.inner {
                match message.get_field_mut(descriptor) {
                    Value::List(items) => {
                        for item in items.iter_mut().filter_map(Value::as_message_mut) {
                            changed |= inner.apply_defaults(item);
                        }
                    }
                    Value::Message(item) => changed |= inner.apply_defaults(item),
                    _ => {}
                }
            }
        }
        changed
    }

    /// The explicit fields as JSON, with the size in place of secret or large values.
    fn redacted_json(&self, message: &DynamicMessage) -> Result<serde_json::Value, Error> {
        let mut visible = DynamicMessage::new(self.message.clone());
        let mut hidden = Vec::new();
        for (field, value) in message.fields() {
            let bytes = content_bytes(value);
            if self.field(&field).is_some_and(|field_spec| field_spec.rules.sensitive) {
                hidden.push((field.name().to_owned(), size_placeholder(value)));
            } else if bytes > MAX_RECORDED_PARAMS_BYTES {
                // Not copied: other calls use this thread too.
                let size = format!("<{bytes} bytes>").into();
                hidden.push((field.name().to_owned(), size));
            } else {
                visible.set_field(&field, value.clone());
            }
        }

        let options =
            SerializeOptions::new().use_proto_field_name(true).stringify_64_bit_integers(false);
        let mut json = visible
            .serialize_with_options(serde_json::value::Serializer, &options)
            .map_err(Error::internal)?;

        if let Some(object) = json.as_object_mut() {
            object.extend(hidden);
        }
        Ok(json)
    }
}

/// Checks the value of a field that is present.
fn check_field(value: &Value, field: &FieldSpec, name: &str, violations: &mut Vec<Violation>) {
    let (field, rules) = (&field.descriptor, &field.rules);
    match value {
        Value::List(items) => check_list(items, rules, name, violations),
        Value::Map(entries) => check_map(entries, rules, name, violations),
        Value::EnumNumber(number) => check_enum(*number, field, name, violations),
        value => check_value(value, rules, || name.to_owned(), violations),
    }
}

/// Checks a list. The elements of a list that is too long are not checked.
fn check_list(items: &[Value], rules: &FieldRules, name: &str, violations: &mut Vec<Violation>) {
    if !is_within_max_items(items.len(), rules) {
        violations.push(too_many_elements(items.len(), rules, name));
        return;
    }

    for (index, item) in items.iter().enumerate() {
        if is_full(violations) {
            return;
        }
        check_value(item, rules, || format!("{name}[{index}]"), violations);
    }
}

/// Checks the keys and values of a map. Those of a map that is too large are not checked.
fn check_map(
    entries: &HashMap<MapKey, Value>,
    rules: &FieldRules,
    name: &str,
    violations: &mut Vec<Violation>,
) {
    if !is_within_max_items(entries.len(), rules) {
        violations.push(too_many_elements(entries.len(), rules, name));
        return;
    }

    for (key, value) in entries {
        if is_full(violations) {
            return;
        }
        let path = || match key {
            MapKey::String(key) => format!("{name}[{key:?}]"),
            other => format!("{name}[{other:?}]"),
        };
        if let MapKey::String(key) = key {
            check_value(&Value::String(key.clone()), rules, path, violations);
        }
        check_value(value, rules, path, violations);
    }
}

fn check_enum(number: i32, field: &FieldDescriptor, name: &str, violations: &mut Vec<Violation>) {
    if let Kind::Enum(kind) = field.kind()
        && kind.get_value(number).is_none()
    {
        let values: Vec<_> = kind.values().skip(1).map(|value| value.name().to_owned()).collect();
        let text = format!("is {number}; it must be one of {}", values.join(", "));
        violations.push(Violation::new(name, text));
    }
}

/// Whether there are as many violations as an error reports.
fn is_full(violations: &[Violation]) -> bool {
    violations.len() > MAX_VIOLATIONS
}

/// The text for a field that is missing, or for a list that is empty.
fn required_text(rules: &FieldRules) -> String {
    match rules.max_items {
        Some(max) => format!("is required, with 1 to {max} elements"),
        None => "is required".to_owned(),
    }
}

/// Whether a list or map may have this many elements.
pub(super) fn is_within_max_items(count: usize, rules: &FieldRules) -> bool {
    rules.max_items.is_none_or(|max| count <= max as usize)
}

pub(super) fn too_many_elements(count: usize, rules: &FieldRules, name: &str) -> Violation {
    let max = rules.max_items.unwrap_or_default();
    let text = format!("has {count} elements; at most {max} are allowed");
    Violation::new(name, text)
}

/// Checks a number against its range, or a string against its length and content.
fn check_value(
    value: &Value,
    rules: &FieldRules,
    path: impl Fn() -> String,
    violations: &mut Vec<Violation>,
) {
    let mut report = |text: String| violations.push(Violation::new(path(), text));

    let number = match value {
        Value::I32(number) => Some(i128::from(*number)),
        Value::I64(number) => Some(i128::from(*number)),
        Value::U32(number) => Some(i128::from(*number)),
        Value::U64(number) => Some(i128::from(*number)),
        _ => None,
    };

    let (minimum, maximum) = (rules.minimum.map(i128::from), rules.maximum.map(i128::from));
    if let Some(number) = number.filter(|number| {
        minimum.is_some_and(|min| *number < min) || maximum.is_some_and(|max| *number > max)
    }) {
        let range = match (minimum, maximum) {
            (Some(min), Some(max)) => format!("from {min} to {max}"),
            (Some(min), None) => format!("at least {min}"),
            (None, Some(max)) => format!("at most {max}"),
            (None, None) => String::new(),
        };
        report(format!("is {number}; it must be {range}"));
    }

    let bytes = match value {
        Value::String(text) => Some(text.as_bytes()),
        Value::Bytes(bytes) => Some(bytes.as_ref()),
        _ => None,
    };

    if let Some(bytes) = bytes {
        if let Some(max) = rules.max_bytes.filter(|max| bytes.len() > *max as usize) {
            report(format!("has {} bytes; at most {max} are allowed", bytes.len()));
        }
        if rules.no_nul && bytes.contains(&0) {
            report("must not hold a NUL character".to_owned());
        }
        if rules.required && bytes.is_empty() {
            report("must not be empty".to_owned());
        }
    }
}

fn declared_default(field: &FieldDescriptor, rules: &FieldRules) -> Option<Value> {
    Some(match (rules.default_value.as_ref()?, field.kind()) {
        (DefaultValue::DefaultNumber(number), Kind::Uint32) => {
            Value::U32(u32::try_from(*number).ok()?)
        }
        (DefaultValue::DefaultNumber(number), Kind::Int32) => {
            Value::I32(i32::try_from(*number).ok()?)
        }
        (DefaultValue::DefaultNumber(number), Kind::Uint64) => {
            Value::U64(u64::try_from(*number).ok()?)
        }
        (DefaultValue::DefaultNumber(number), Kind::Int64) => Value::I64(*number),
        (DefaultValue::DefaultBool(flag), Kind::Bool) => Value::Bool(*flag),
        (DefaultValue::DefaultText(text), Kind::String) => Value::String(text.clone()),
        (DefaultValue::DefaultText(text), Kind::Enum(kind)) => {
            Value::EnumNumber(kind.get_value_by_name(text)?.number())
        }
        _ => return None,
    })
}

/// Bytes of the strings and bytes in a value, and about those of numbers.
fn content_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        Value::List(items) => items.iter().map(content_bytes).sum(),
        Value::Map(entries) => entries.values().map(content_bytes).sum(),
        Value::Message(message) => message.fields().map(|(_, value)| content_bytes(value)).sum(),
        _ => 8,
    }
}

/// The size of a value, to show in its place.
pub(super) fn size_placeholder(value: &Value) -> serde_json::Value {
    match value {
        Value::String(text) => format!("<{} bytes>", text.len()).into(),
        Value::Bytes(bytes) => format!("<{} bytes>", bytes.len()).into(),
        Value::List(items) => items.iter().map(size_placeholder).collect::<Vec<_>>().into(),
        Value::Map(entries) => {
            let entry = |(key, value): (&MapKey, &Value)| {
                let key = key.as_str().map_or_else(|| format!("{key:?}"), str::to_owned);
                (key, size_placeholder(value))
            };
            serde_json::Value::Object(entries.iter().map(entry).collect())
        }
        _ => "<hidden>".into(),
    }
}
