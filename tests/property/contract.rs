//! The contract's tools, read from their descriptors, and random requests that satisfy the rules of
//! single fields.

use std::collections::HashMap;

use fastrand::Rng;
use jig::api::{
    self,
    v1::{FieldRules, ToolOptions, field_rules::DefaultValue},
};
use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, ExtensionDescriptor, FieldDescriptor, Kind, MapKey,
    MessageDescriptor, MethodDescriptor, Value,
};

use super::generators;

/// Longest text that is filled up to its limit.
const MAX_FILLED_TEXT_BYTES: u32 = 128 << 10;

#[derive(Debug)]
pub(super) struct Contract {
    pool: DescriptorPool,
    rules: ExtensionDescriptor,
    /// The tools of `ToolService`.
    pub(super) tools: Vec<ContractTool>,
}

#[derive(Debug)]
pub(super) struct ContractTool {
    pub(super) name: String,
    /// The typed RPC of the tool.
    pub(super) method: MethodDescriptor,
}

impl Contract {
    /// Reads the contract's descriptors.
    pub(super) fn load() -> Self {
        let pool = DescriptorPool::decode(api::FILE_DESCRIPTOR_SET).unwrap();
        let extension = pool.get_extension_by_name("jig.v1.tool").unwrap();
        let service = pool.get_service_by_name("jig.v1.ToolService").unwrap();
        let tools = service.methods().map(|method| {
            let options = method.options();
            let options: ToolOptions = decode_options(&options, &extension).unwrap();
            ContractTool { name: options.name, method }
        });
        let tools: Vec<_> = tools.collect();
        assert_eq!(tools.len(), 17);

        Self { rules: pool.get_extension_by_name("jig.v1.field").unwrap(), pool, tools }
    }

    pub(super) fn message_descriptor(&self, name: &str) -> MessageDescriptor {
        self.pool.get_message_by_name(name).unwrap()
    }

    /// The declared rules of a field.
    pub(super) fn rules(&self, field: &FieldDescriptor) -> FieldRules {
        decode_options(&field.options(), &self.rules).unwrap_or_default()
    }

    /// A message in which each field, taken alone, satisfies its rules.
    pub(super) fn random_message(
        &self,
        descriptor: &MessageDescriptor,
        rng: &mut Rng,
    ) -> DynamicMessage {
        let mut message = DynamicMessage::new(descriptor.clone());
        for field in descriptor.fields() {
            let rules = self.rules(&field);
            if !rules.required && rng.bool() {
                continue;
            }

            let value = if field.is_map() {
                let entries = (0..rng.usize(1..4)).map(|_| {
                    let (name, value) = (generators::variable(rng), generators::text(rng));
                    (MapKey::String(name), Value::String(value))
                });
                Value::Map(entries.collect::<HashMap<_, _>>())
            } else if field.is_list() {
                let count = rng.usize(1..4);
                Value::List((0..count).map(|_| self.random_value(&field, &rules, rng)).collect())
            } else {
                self.random_value(&field, &rules, rng)
            };

            message.set_field(&field, value);
        }

        message
    }

    fn random_value(&self, field: &FieldDescriptor, rules: &FieldRules, rng: &mut Rng) -> Value {
        match field.kind() {
            Kind::Bool => Value::Bool(rng.bool()),
            Kind::Uint32 => {
                Value::U32(u32::try_from(random_number(rules, u32::MAX.into(), rng)).unwrap())
            }
            Kind::Uint64 => Value::U64(random_number(rules, u64::MAX, rng)),
            Kind::Enum(values) => {
                // The zero value counts as unset.
                let values: Vec<_> = values.values().skip(1).collect();
                Value::EnumNumber(values[rng.usize(..values.len())].number())
            }
            Kind::Bytes => {
                let bytes: Vec<u8> = (0..rng.usize(..300)).map(|_| rng.u8(..)).collect();
                Value::Bytes(bytes.into())
            }
            Kind::Message(inner) => Value::Message(self.random_message(&inner, rng)),
            Kind::String => Value::String(match field.name() {
                _ if rules.path => generators::path(rng),
                "glob" | "globs" | "exclude_globs" => generators::glob(rng),
                _ => random_text(field, rules, rng),
            }),
            kind => panic!("{kind:?} has no generator"),
        }
    }
}

fn random_text(field: &FieldDescriptor, rules: &FieldRules, rng: &mut Rng) -> String {
    let mut text =
        if rules.required { generators::non_empty_text(rng) } else { generators::text(rng) };
    if !rules.no_nul && rng.u8(..4) == 0 {
        text.push('\0');
    }

    if let Some(max_bytes) = rules.max_bytes.filter(|max_bytes| *max_bytes <= MAX_FILLED_TEXT_BYTES)
        && !field.is_list()
        && rng.u8(..16) == 0
    {
        text = "l".repeat(max_bytes as usize);
    }

    if let Some(max_bytes) = rules.max_bytes {
        text.truncate(text.floor_char_boundary(max_bytes as usize));
    }

    text
}

/// A permitted number: a bound, next to a bound, the default, a small one, or any.
fn random_number(rules: &FieldRules, type_max: u64, rng: &mut Rng) -> u64 {
    let min = u64::try_from(rules.minimum.unwrap_or(0)).unwrap();
    let max = rules.maximum.map_or(type_max, |max| max.try_into().unwrap());
    let default = match rules.default_value {
        Some(DefaultValue::DefaultNumber(number)) => number.try_into().unwrap(),
        _ => min,
    };

    match rng.u8(..7) {
        0 => min,
        1 => max,
        2 => min + 1,
        3 => max - 1,
        4 => default,
        5 => rng.u64(min..=max),
        _ => rng.u64(min..=max.min(min + 100)),
    }
}

fn decode_options<T: Message + Default>(
    options: &DynamicMessage,
    extension: &ExtensionDescriptor,
) -> Option<T> {
    let is_set = options.has_extension(extension);
    let value = is_set.then(|| options.get_extension(extension))?;
    Some(value.as_message()?.transcode_to().unwrap())
}
