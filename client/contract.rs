//! Test helper: compares the keys of printed JSON with the descriptors, so that new fields are
//! noticed.

use prost_reflect::DescriptorPool;
use serde_json::Value;

/// Asserts that `value` has exactly the fields of the message named `message`.
pub(crate) fn has_all_fields(message: &str, value: &Value) {
    let pool = DescriptorPool::decode(jig::api::FILE_DESCRIPTOR_SET).unwrap();
    let descriptor = pool.get_message_by_name(message).unwrap();

    let mut fields: Vec<_> = descriptor.fields().map(|field| field.name().to_owned()).collect();
    fields.sort();

    let mut found: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
    found.sort();
    assert_eq!(found, fields, "{message}");
}
