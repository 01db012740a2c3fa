//! Limits on encoded requests: their size, and the number of elements in their lists. They are
//! enforced before a request is decoded: an element of a few bytes can take a hundred bytes of
//! memory.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "kinds of values with a fixed size, in an enum of another crate"
)]

use prost_reflect::{Kind, MessageDescriptor, MethodDescriptor};

use super::rules::{MessageRules, is_within_max_items, too_many_elements};
use crate::{api::v1::FieldRules, daemon::error::Violation};

/// Largest request of any method: 8 MiB of input, or 10 MiB of Base64, and the other fields.
pub(crate) const MAX_REQUEST_BYTES: usize = 16 << 20;
/// Bytes beyond the limits of the fields. A caller that slightly exceeds a field's limit gets an
/// error that names the field.
const REQUEST_SLACK_BYTES: usize = 64 << 10;
/// Bytes of a field beside its value: at most 5 of the tag and 10 of the length or number.
const FIELD_OVERHEAD_BYTES: usize = 16;
/// Most values in the parameters of a call, including those in lists and objects. The largest lists
/// of any tool have some 65,000. A small request can contain millions, each of which takes a
/// hundred bytes of memory.
pub(crate) const MAX_PARAM_VALUES: usize = 1 << 18;
/// Most messages that [`MAX_PARAM_VALUES`] values need. Each value is a message, may be in an
/// entry, and may hold a list or an object.
const MAX_NESTED_MESSAGES: usize = 3 * MAX_PARAM_VALUES;
/// Most levels of nested messages: the limit of the decoder.
const MAX_MESSAGE_DEPTH: usize = 100;

/// The limits on requests of one method.
#[derive(Debug)]
pub(crate) struct RequestLimits {
    /// Most bytes of a message.
    pub(crate) max_bytes: usize,
    /// Whether a call counts against the caller's rate limit.
    pub(crate) rate_limited: bool,
    /// Whether a call may send several messages.
    pub(crate) client_streaming: bool,
    repeated_fields: Vec<RepeatedField>,
}

/// A field with a limit on its elements.
#[derive(Debug)]
struct RepeatedField {
    name: String,
    number: u64,
    limit: RepeatedFieldLimit,
}

#[derive(Debug)]
enum RepeatedFieldLimit {
    /// On the elements of the field.
    Elements(FieldRules),
    /// On all messages within the field.
    NestedMessages(MessageDescriptor),
}

/// An encoded field: its number, and its value if it is length-delimited.
type WireField<'a> = (u64, Option<&'a [u8]>);

impl RequestLimits {
    /// The limits of a method whose requests have these rules.
    pub(super) fn from_method(
        method: &MethodDescriptor,
        rules: &MessageRules,
        rate_limited: bool,
    ) -> Self {
        let message = method.input();
        let max_bytes = max_encoded_bytes(&message, Some(rules));

        let repeated_fields = message.fields().filter_map(|field| {
            let field_spec = rules.field(&field);
            let limit = match (field.kind(), field_spec) {
                (_, Some(field_spec)) if field_spec.rules.max_items.is_some() => {
                    RepeatedFieldLimit::Elements(field_spec.rules.clone())
                }
                (Kind::Message(inner), _) if inner.package_name() != "jig.v1" => {
                    RepeatedFieldLimit::NestedMessages(inner)
                }
                _ => return None,
            };
            Some(RepeatedField {
                name: field.name().to_owned(),
                number: field.number().into(),
                limit,
            })
        });

        Self {
            max_bytes: max_bytes.map_or(MAX_REQUEST_BYTES, |bytes| {
                bytes.saturating_add(REQUEST_SLACK_BYTES).min(MAX_REQUEST_BYTES)
            }),
            rate_limited,
            client_streaming: method.is_client_streaming(),
            repeated_fields: repeated_fields.collect(),
        }
    }

    /// Violations of fields with too many elements. Stops where the request is malformed: it is not
    /// decoded then either.
    pub(crate) fn oversized_fields(&self, request: &[u8]) -> Vec<Violation> {
        let mut counts = vec![0; self.repeated_fields.len()];
        for (number, value) in WireFields::new(request) {
            let fields = &self.repeated_fields;
            let Some(index) = fields.iter().position(|field| field.number == number) else {
                continue;
            };
            counts[index] += match (&fields[index].limit, value) {
                (RepeatedFieldLimit::NestedMessages(message), Some(value)) => {
                    count_messages(message, value, MAX_NESTED_MESSAGES + 1, MAX_MESSAGE_DEPTH)
                }
                _ => 1,
            };
        }

        let counted = self.repeated_fields.iter().zip(counts);
        let violations = counted.filter_map(|(field, count)| match &field.limit {
                    RepeatedFieldLimit::Elements(rules) if is_within_max_items(count, rules) => None,
                    RepeatedFieldLimit::Elements(rules) => {
                        Some(too_many_elements(count, rules, &field.name))
                    }
                    RepeatedFieldLimit::NestedMessages(_) if count <= MAX_NESTED_MESSAGES => None,
                    RepeatedFieldLimit::NestedMessages(_) => {
                        let text = format!(
                            "has more than {MAX_PARAM_VALUES} values, with those in lists and objects: ask for less"
                        );
                        Some(Violation::new(field.name.clone(), text))
                    }
                });
        violations.collect()
    }
}

/// Most bytes that the fields of a message may take; `None` if a field is unlimited.
fn max_encoded_bytes(message: &MessageDescriptor, rules: Option<&MessageRules>) -> Option<usize> {
    message.fields().try_fold(0, |sum: usize, field| {
        let field_spec = rules.and_then(|rules| rules.field(&field));
        let field_rules = field_spec.map(|field_spec| &field_spec.rules);
        let to_usize = |limit: Option<u32>| limit.and_then(|max| usize::try_from(max).ok());
        let bytes = to_usize(field_rules.and_then(|rules| rules.max_bytes));

        let count = if field.is_list() || field.is_map() {
            to_usize(field_rules.and_then(|rules| rules.max_items))?
        } else {
            1
        };

        let each = match field.kind() {
            // The key and the value.
            Kind::Message(_) if field.is_map() => bytes?.saturating_add(FIELD_OVERHEAD_BYTES) * 2,
            Kind::Message(inner) => max_encoded_bytes(
                &inner,
                field_spec.and_then(|field_spec| field_spec.inner.as_ref()),
            )?,
            Kind::String | Kind::Bytes => bytes?,
            _ => 0,
        };

        let each = each.saturating_add(FIELD_OVERHEAD_BYTES);
        Some(sum.saturating_add(each.saturating_mul(count)))
    })
}

/// Counts the messages within an encoded message. Stops at about `max`.
fn count_messages(message: &MessageDescriptor, encoded: &[u8], max: usize, depth: usize) -> usize {
    let mut count = 0;
    for (number, value) in WireFields::new(encoded) {
        let field = u32::try_from(number).ok();
        let kind = field.and_then(|number| Some(message.get_field(number)?.kind()));
        if let (Some(Kind::Message(inner)), Some(value)) = (kind, value)
            && depth > 0
        {
            count += 1 + count_messages(&inner, value, max.saturating_sub(count), depth - 1);
        }
        if count >= max {
            break;
        }
    }
    count
}

/// Iterates over the fields of an encoded message, up to its end or to a malformed field.
struct WireFields<'a> {
    rest: &'a [u8],
    /// Open groups. They are deprecated, but the decoder skips them, so this does too.
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

    fn limits_of(path: &str) -> Arc<RequestLimits> {
        let catalog = Catalog::load().unwrap();
        Arc::clone(catalog.request_limits(path).unwrap())
    }

    #[test]
    fn limits_follow_from_the_rules_of_the_fields() {
        for (path, max_bytes) in [
            ("jig.v1.ToolService/StatPath", 4096 + FIELD_OVERHEAD_BYTES + REQUEST_SLACK_BYTES),
            ("jig.v1.ToolService/LastCommand", REQUEST_SLACK_BYTES),
            ("jig.v1.ToolService/Run", MAX_REQUEST_BYTES),
            ("jig.v1.JobService/SubmitJob", MAX_REQUEST_BYTES),
        ] {
            assert_eq!(limits_of(path).max_bytes, max_bytes, "{path}");
        }

        let upload = limits_of("jig.v1.TransferService/Upload");
        assert!(upload.client_streaming && upload.max_bytes < 2 << 20);
        let catalog = Catalog::load().unwrap();
        let large: Vec<_> = catalog
            .method_paths()
            .filter(|path| limits_of(path).max_bytes == MAX_REQUEST_BYTES)
            .collect();
        assert_eq!(
            large,
            [
                "jig.v1.InvokeService/Invoke",
                "jig.v1.InvokeService/InvokeBatch",
                "jig.v1.InvokeService/InvokeStream",
                "jig.v1.JobService/SubmitJob",
                "jig.v1.ProcessService/Start",
                "jig.v1.ToolService/EditFile",
                "jig.v1.ToolService/Run",
            ]
        );
    }

    #[test]
    fn tools_and_declared_methods_are_rate_limited() {
        for (path, rate_limited) in [
            ("jig.v1.ToolService/StatPath", true),
            ("jig.v1.EventService/WatchEvents", true),
            ("jig.v1.JobService/SubmitJob", true),
            ("jig.v1.JobService/GetJob", false),
            ("jig.v1.DaemonService/GetInfo", false),
        ] {
            assert_eq!(limits_of(path).rate_limited, rate_limited, "{path}");
        }
    }

    #[test]
    fn long_lists_are_rejected_before_decoding() {
        let run = limits_of("jig.v1.ToolService/Run");
        let request = |arguments| RunRequest {
            argv: vec![String::new(); arguments],
            ..RunRequest::default()
        };

        let oversized = |encoded: &[u8]| {
            let violations = run.oversized_fields(encoded);
            violations.into_iter().map(|violation| violation.field).collect::<Vec<_>>()
        };

        let (allowed, long) = (request(65_536).encode_to_vec(), request(65_537).encode_to_vec());
        assert!(oversized(&allowed).is_empty());
        assert_eq!(oversized(&long), ["argv"]);

        // After a skipped group, and before malformed bytes.
        let group = [0xa3, 0x06, 0x12, 0x00, 0xa4, 0x06];
        assert_eq!(oversized(&[&group[..], &long, &[0xff]].concat()), ["argv"]);
        assert!(oversized(&[&group[..], &allowed].concat()).is_empty());
    }

    #[test]
    fn nested_values_are_counted_at_any_depth() {
        let submit = limits_of("jig.v1.JobService/SubmitJob");
        let request = |count| {
            let nothing = Value { kind: Some(Kind::BoolValue(true)) };
            let list = ListValue { values: vec![nothing; count] };
            let list = Value { kind: Some(Kind::ListValue(list)) };
            let params = Struct { fields: [("list".to_owned(), list)].into() };
            SubmitJobRequest { params: Some(params), ..SubmitJobRequest::default() }
        };

        let oversized = |count| submit.oversized_fields(&request(count).encode_to_vec());
        assert!(oversized(MAX_PARAM_VALUES).is_empty());
        let violations = oversized(MAX_NESTED_MESSAGES);
        assert_eq!(violations.len(), 1);
        assert_eq!(violations[0].field, "params");
    }
}
