//! For tests: whether what is printed has all that the contract has. The names are taken from the descriptors, so
//! that a new field is noticed.

use prost_reflect::DescriptorPool;
use serde_json::Value;

/// Looks whether `value` has the fields of the message of this name, and no others.
pub(crate) fn has_all_fields(message: &str, value: &Value) {
    let pool = DescriptorPool::decode(jig::api::FILE_DESCRIPTOR_SET).unwrap();
    let descriptor = pool.get_message_by_name(message).unwrap();
    let mut fields: Vec<_> = descriptor.fields().map(|field| field.name().to_owned()).collect();
    fields.sort();
    let mut found: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
    found.sort();
    assert_eq!(found, fields, "{message}");
}
