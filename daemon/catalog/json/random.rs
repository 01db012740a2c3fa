//! Property test: random requests of all tools survive the way to JSON and back. Their values need
//! not satisfy the rules of the fields, which are checked later.

use std::{collections::HashMap, env, thread};

use fastrand::Rng;
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, Kind, MapKey, MessageDescriptor, Value};
use serde_json::{Map, Value as Json};

use super::{MessageRules, read, write};
use crate::api;

/// Prints how to repeat the case if the test fails.
struct SeedReporter(u64);

impl Drop for SeedReporter {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("JIG_PROPERTY_SEED={} repeats this case", self.0);
        }
    }
}

fn random_message(descriptor: &MessageDescriptor, rng: &mut Rng) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        if rng.bool() {
            continue;
        }

        let count = rng.usize(..4);
        let value = if field.is_map() {
            let entries = (0..count)
                .map(|_| (MapKey::String(random_text(rng)), Value::String(random_text(rng))));
            Value::Map(entries.collect::<HashMap<_, _>>())
        } else if field.is_list() {
            Value::List((0..count).map(|_| random_value(&field.kind(), rng)).collect())
        } else {
            random_value(&field.kind(), rng)
        };

        message.set_field(&field, value);
    }
    message
}

fn random_value(kind: &Kind, rng: &mut Rng) -> Value {
    let number = match rng.u8(..4) {
        0 => 0,
        1 => u64::MAX,
        2 => rng.u64(..),
        _ => 1 << rng.u32(..64),
    };
    match kind {
        Kind::Bool => Value::Bool(rng.bool()),
        Kind::Uint32 => Value::U32(u32::try_from(number).unwrap_or(u32::MAX)),
        Kind::Uint64 => Value::U64(number),
        Kind::String => Value::String(random_text(rng)),
        Kind::Bytes => Value::Bytes(random_text(rng).into_bytes().into()),
        Kind::Message(descriptor) => Value::Message(random_message(descriptor, rng)),
        Kind::Enum(values) => {
            // The first value counts as missing.
            let values: Vec<_> = values.values().skip(1).collect();
            Value::EnumNumber(values[rng.usize(..values.len())].number())
        }
        other => panic!("{other:?} is new: add a random value for it"),
    }
}

fn random_text(rng: &mut Rng) -> String {
    let letter = |rng: &mut Rng| match rng.u8(..4) {
        0 => rng.char('\0'..='\u{7f}'),
        1 => rng.char('\u{80}'..='\u{ff}'),
        2 => ['"', '\\', '/', '\u{2028}', '\u{feff}', '\u{fffd}'][rng.usize(..6)],
        _ => rng.char(..),
    };
    (0..rng.usize(..12)).map(|_| letter(rng)).collect()
}

/// The message with every number as a string, as clients send it whose own numbers are doubles.
fn with_number_strings(json: Json) -> Json {
    match json {
        Json::Number(number) => number.to_string().into(),
        Json::Array(items) => items.into_iter().map(with_number_strings).collect(),
        Json::Object(fields) => {
            let fields = fields.into_iter();
            Json::Object(fields.map(|(name, json)| (name, with_number_strings(json))).collect())
        }
        json => json,
    }
}

#[test]
fn written_messages_are_read_back_unchanged() {
    let pool = DescriptorPool::decode(api::FILE_DESCRIPTOR_SET).unwrap();
    let service = pool.get_service_by_name("jig.v1.ToolService").unwrap();
    let seeds = match (env::var("JIG_PROPERTY_SEED"), env::var("JIG_FULL").as_deref()) {
        (Ok(seed), _) => vec![seed.parse().unwrap()],
        (Err(_), Ok("1")) => (0..100_000).map(|_| fastrand::u64(..)).collect(),
        (Err(_), _) => (0..1000).map(|_| fastrand::u64(..)).collect::<Vec<_>>(),
    };
    let objects = |json: Json| match json {
        Json::Object(fields) => fields,
        other => panic!("{other}"),
    };
    let methods: Vec<_> = service
        .methods()
        .map(|method| (MessageRules::from_descriptor(&pool, &method.input()), method))
        .collect();
    for seed in seeds {
        for (rules, method) in &methods {
            let (_case, mut rng) = (SeedReporter(seed), Rng::with_seed(seed));
            let message = random_message(&method.input(), &mut rng);

            let written = write(&message).unwrap();
            let number_strings = objects(with_number_strings(written.clone().into()));
            let text = Json::Object(written.clone()).to_string();
            let parsed: Map<_, _> = objects(serde_json::from_str(&text).unwrap());
            for json in [written, number_strings, parsed] {
                let back = read(rules, &json)
                    .unwrap_or_else(|violations| panic!("{violations:?}: {json:?}"));
                // The wire format does not tell a zero from an absent field.
                let [back, message] = [&back, &message].map(|message| {
                    let encoded = message.encode_to_vec();
                    DynamicMessage::decode(method.input(), &*encoded).unwrap()
                });
                assert!(back == message, "{json:?}");
            }
        }
    }
}
