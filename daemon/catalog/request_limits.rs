//! What requests of a method may be before they are decoded: how large, and how many elements their lists
//! may have. A few bytes of a list can take a hundred bytes of memory, each of them.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "kinds of values of one size, in an enum of another crate"
)]

use prost_reflect::{Kind, MessageDescriptor, MethodDescriptor};

use super::rules::{MessageRules, is_within_max_items, too_many_elements};
use crate::{api::v1::FieldRules, daemon::error::Violation};

/// Largest request of any method: input of 8 MiB, or 10 MiB as Base64, and what surrounds it.
pub(crate) const MAX_REQUEST_BYTES: usize = 16 << 20;
/// What a request may have beyond what the rules of its fields let it have: who breaks one by little is told
/// which.
const REQUEST_SLACK_BYTES: usize = 64 << 10;
/// Bytes of a field beside its value, and of a number: a tag of 5 bytes at most, and a number of 10.
const FIELD_OVERHEAD_BYTES: usize = 16;
/// Most values in the parameters of one call, with those in lists and objects. The largest lists of any tool
/// have some 65,000; a small text can hold millions, each of which takes a hundred bytes of memory.
pub(crate) const MAX_PARAM_VALUES: usize = 1 << 18;
/// Messages that so many values are at most: each is one, may be in an entry, and may hold a list or an object.
const MAX_NESTED_MESSAGES: usize = 3 * MAX_PARAM_VALUES;
/// How deep messages may lie in one another: as deep as they are decoded.
const MAX_MESSAGE_DEPTH: usize = 100;

/// What requests of one method may be.
#[derive(Debug)]
pub(crate) struct RequestLimits {
    /// Most bytes of one message.
    pub(crate) max_bytes: usize,
    /// Whether a call counts towards the rate of its caller.
    pub(crate) rate_limited: bool,
    /// Whether there may be several messages.
    pub(crate) client_streaming: bool,
    repeated_fields: Vec<RepeatedField>,
}

/// A field that can have many elements.
#[derive(Debug)]
struct RepeatedField {
    name: String,
    number: u64,
    limit: RepeatedFieldLimit,
}

#[derive(Debug)]
enum RepeatedFieldLimit {
    /// Of its elements.
    Elements(FieldRules),
    /// Of all messages within it.
    NestedMessages(MessageDescriptor),
}

/// One field as it is written: its number, and its value where that has a length.
type WireField<'a> = (u64, Option<&'a [u8]>);

impl RequestLimits {
    /// That of a method, whose requests have these rules.
    pub(super) fn from_method(
        method: &MethodDescriptor,
        rules: &MessageRules,
        counts: bool,
    ) -> Self {
        let message = method.input();
        let bytes = max_encoded_bytes(&message, Some(rules));
        let lists = message.fields().filter_map(|field| {
            let known = rules.field(&field);
            let bound = match (field.kind(), known) {
                (_, Some(known)) if known.rules.max_items.is_some() => {
                    RepeatedFieldLimit::Elements(known.rules.clone())
                }
                (Kind::Message(inner), _) if inner.package_name() != "jig.v1" => {
                    RepeatedFieldLimit::NestedMessages(inner)
                }
                _ => return None,
            };
            Some(RepeatedField {
                name: field.name().to_owned(),
                number: field.number().into(),
                limit: bound,
            })
        });
        Self {
            max_bytes: bytes.map_or(MAX_REQUEST_BYTES, |bytes| {
                bytes.saturating_add(REQUEST_SLACK_BYTES).min(MAX_REQUEST_BYTES)
            }),
            rate_limited: counts,
            client_streaming: method.is_client_streaming(),
            repeated_fields: lists.collect(),
        }
    }

    /// The lists of an encoded request that have too many elements. What cannot be read is not looked at:
    /// it is not decoded either.
    pub(crate) fn oversized_fields(&self, request: &[u8]) -> Vec<Violation> {
        let mut counts = vec![0; self.repeated_fields.len()];
        for (number, value) in WireFields::new(request) {
            let Some(at) = self.repeated_fields.iter().position(|list| list.number == number)
            else {
                continue;
            };
            counts[at] += match (&self.repeated_fields[at].limit, value) {
                (RepeatedFieldLimit::NestedMessages(message), Some(value)) => {
                    count_messages(message, value, MAX_NESTED_MESSAGES + 1, MAX_MESSAGE_DEPTH)
                }
                _ => 1,
            };
        }
        let found = self.repeated_fields.iter().zip(counts);
        let found = found.filter_map(|(list, count)| match &list.limit {
            RepeatedFieldLimit::Elements(rules) if is_within_max_items(count, rules) => None,
            RepeatedFieldLimit::Elements(rules) => Some(too_many_elements(count, rules, &list.name)),
            RepeatedFieldLimit::NestedMessages(_) if count <= MAX_NESTED_MESSAGES => None,
            RepeatedFieldLimit::NestedMessages(_) => {
                let text = format!(
                    "has more than {MAX_PARAM_VALUES} values, with those in lists and objects: ask for less"
                );
                Some(Violation::new(list.name.clone(), text))
            }
        });
        found.collect()
    }
}

/// Most bytes that the fields of a message may take; nothing where they have no limit.
fn max_encoded_bytes(message: &MessageDescriptor, rules: Option<&MessageRules>) -> Option<usize> {
    message.fields().try_fold(0, |sum: usize, field| {
        let known = rules.and_then(|rules| rules.field(&field));
        let own = known.map(|known| &known.rules);
        let most = |limit: Option<u32>| limit.and_then(|most| usize::try_from(most).ok());
        let bytes = most(own.and_then(|own| own.max_bytes));
        let count = match field.is_list() || field.is_map() {
            true => most(own.and_then(|own| own.max_items))?,
            false => 1,
        };
        let each = match field.kind() {
            // Its key, and its value.
            Kind::Message(_) if field.is_map() => bytes?.saturating_add(FIELD_OVERHEAD_BYTES) * 2,
            Kind::Message(inner) => {
                max_encoded_bytes(&inner, known.and_then(|known| known.inner.as_ref()))?
            }
            Kind::String | Kind::Bytes => bytes?,
            _ => 0,
        };
        let each = each.saturating_add(FIELD_OVERHEAD_BYTES);
        Some(sum.saturating_add(each.saturating_mul(count)))
    })
}

/// How many messages there are within one, up to about `most`.
fn count_messages(message: &MessageDescriptor, encoded: &[u8], most: usize, depth: usize) -> usize {
    let mut found = 0;
    for (number, value) in WireFields::new(encoded) {
        let field = u32::try_from(number).ok();
        let kind = field.and_then(|number| Some(message.get_field(number)?.kind()));
        if let (Some(Kind::Message(inner)), Some(value)) = (kind, value)
            && depth > 0
        {
            found += 1 + count_messages(&inner, value, most.saturating_sub(found), depth - 1);
        }
        if found >= most {
            break;
        }
    }
    found
}

/// The fields of an encoded message, until its end or where it cannot be read.
struct WireFields<'a> {
    rest: &'a [u8],
    /// Groups that have begun: nobody writes them any more, but they are skipped.
    groups: usize,
}

impl<'a> WireFields<'a> {
    fn new(rest: &'a [u8]) -> Self {
        Self { rest, groups: 0 }
    }

    fn read_varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in 0..10 {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            number |= u64::from(byte & 0x7f) << (7 * shift);
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take_bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }
}

impl<'a> Iterator for WireFields<'a> {
    type Item = WireField<'a>;

    fn next(&mut self) -> Option<WireField<'a>> {
        loop {
            let tag = self.read_varint()?;
            let mut value = None;
            match tag & 7 {
                0 => drop(self.read_varint()?),
                1 => drop(self.take_bytes(8)?),
                2 => {
                    let length = usize::try_from(self.read_varint()?).ok()?;
                    value = Some(self.take_bytes(length)?);
                }
                3 => self.groups += 1,
                4 => self.groups = self.groups.checked_sub(1)?,
                5 => drop(self.take_bytes(4)?),
                _ => return None,
            }
            if self.groups == 0 && tag & 7 != 4 {
                return Some((tag >> 3, value));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prost::Message as _;
    use prost_types::{ListValue, Struct, Value, value::Kind};

    use super::*;
    use crate::{
        api::v1::{RunRequest, SubmitJobRequest},
        daemon::catalog::Catalog,
    };

    fn measure(path: &str) -> Arc<RequestLimits> {
        let catalog = Catalog::load().unwrap();
        Arc::clone(catalog.request_limits(path).unwrap())
    }

    #[test]
    fn requests_are_as_large_as_their_fields() {
        for (path, most) in [
            ("jig.v1.ToolService/StatPath", 4096 + FIELD_OVERHEAD_BYTES + REQUEST_SLACK_BYTES),
            ("jig.v1.ToolService/LastCommand", REQUEST_SLACK_BYTES),
            ("jig.v1.ToolService/Run", MAX_REQUEST_BYTES),
            ("jig.v1.JobService/SubmitJob", MAX_REQUEST_BYTES),
        ] {
            assert_eq!(measure(path).max_bytes, most, "{path}");
        }
        let of_chunk = measure("jig.v1.TransferService/Upload");
        assert!(of_chunk.client_streaming && of_chunk.max_bytes < 2 << 20);
        let catalog = Catalog::load().unwrap();
        let large: Vec<_> = catalog
            .method_paths()
            .filter(|path| measure(path).max_bytes == MAX_REQUEST_BYTES)
            .collect();
        assert_eq!(
            large,
            [
                "jig.v1.InvokeService/Invoke",
                "jig.v1.InvokeService/InvokeBatch",
                "jig.v1.JobService/SubmitJob",
                "jig.v1.ProcessService/Start",
                "jig.v1.ToolService/EditFile",
                "jig.v1.ToolService/Run",
            ]
        );
    }

    #[test]
    fn calls_count_that_are_declared_to() {
        for (path, counts) in [
            ("jig.v1.ToolService/StatPath", true),
            ("jig.v1.EventService/WatchEvents", true),
            ("jig.v1.JobService/SubmitJob", true),
            ("jig.v1.JobService/GetJob", false),
            ("jig.v1.DaemonService/GetInfo", false),
        ] {
            assert_eq!(measure(path).rate_limited, counts, "{path}");
        }
    }

    #[test]
    fn long_lists_are_seen_before_they_are_decoded() {
        let run = measure("jig.v1.ToolService/Run");
        let request = |arguments| RunRequest {
            argv: vec![String::new(); arguments],
            ..RunRequest::default()
        };
        let told = |encoded: &[u8]| {
            let found = run.oversized_fields(encoded);
            found.into_iter().map(|violation| violation.field).collect::<Vec<_>>()
        };
        let (fine, long) = (request(65_536).encode_to_vec(), request(65_537).encode_to_vec());
        assert!(told(&fine).is_empty());
        assert_eq!(told(&long), ["argv"]);
        // Behind what is skipped, and before what cannot be read.
        let group = [0xa3, 0x06, 0x12, 0x00, 0xa4, 0x06];
        assert_eq!(told(&[&group[..], &long, &[0xff]].concat()), ["argv"]);
        assert!(told(&[&group[..], &fine].concat()).is_empty());
    }

    #[test]
    fn values_are_counted_however_deep() {
        let submit = measure("jig.v1.JobService/SubmitJob");
        let request = |count| {
            let nothing = Value { kind: Some(Kind::BoolValue(true)) };
            let list = ListValue { values: vec![nothing; count] };
            let list = Value { kind: Some(Kind::ListValue(list)) };
            let params = Struct { fields: [("list".to_owned(), list)].into() };
            SubmitJobRequest { params: Some(params), ..SubmitJobRequest::default() }
        };
        let told = |count| submit.oversized_fields(&request(count).encode_to_vec());
        assert!(told(MAX_PARAM_VALUES).is_empty());
        let found = told(MAX_NESTED_MESSAGES);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].field, "params");
    }
}
