//! Options of tools and fields: completeness and consistency.

use std::collections::BTreeSet;

use jig::api::v1::{FieldRules, Risk, field_rules::DefaultValue};
use prost_reflect::{Cardinality, FieldDescriptor, Kind};

use super::descriptors::{field_rules, messages, methods, tool_options};
use crate::tidy::assert_none;

#[test]
fn every_rpc_of_the_tool_service_is_a_tool() {
    let mut found = Vec::new();
    let mut names = BTreeSet::new();
    for method in methods() {
        let name = method.full_name().to_owned();
        let Some(tool) = tool_options(&method) else {
            if method.parent_service().name() == "ToolService" {
                found.push(format!("{name} has no option (jig.v1.tool)"));
            }
            continue;
        };
        let mut characters = tool.name.chars();
        let has_valid_start = characters.next().is_some_and(|c| c.is_ascii_lowercase());
        let has_valid_rest =
            characters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if !has_valid_start || !has_valid_rest || tool.name.len() > 64 {
            found.push(format!("{name}: invalid tool name: {:?}", tool.name));
        }
        if !names.insert(tool.name.clone()) {
            found.push(format!("{name}: another tool has the name {}", tool.name));
        }

        if tool.title.is_empty() {
            found.push(format!("{name} has no title"));
        }

        if tool.risk() == Risk::Unspecified {
            found.push(format!("{name} has no risk"));
        }

        if tool.default_timeout_sec == 0 {
            found.push(format!("{name} has no time limit"));
        }

        if tool.read_only != (tool.risk() == Risk::ReadOnly) || tool.read_only && tool.destructive {
            found.push(format!("{name}: its risk contradicts its hints"));
        }

        if method.is_client_streaming() || method.is_server_streaming() {
            found.push(format!("{name} is not unary"));
        }
    }

    assert_none("tools", found);
}

#[test]
fn field_defaults_lie_within_field_limits() {
    let mut found = Vec::new();
    for message in messages() {
        for field in message.fields() {
            if let Some(rules) = field_rules(&field) {
                let problems = contradictions(&field, &rules).into_iter();
                found.extend(problems.map(|problem| format!("{}: {problem}", field.full_name())));
            }
        }
    }

    assert_none("rules of fields", found);
}

/// Contradictions within the rules of a field.
fn contradictions(field: &FieldDescriptor, rules: &FieldRules) -> Vec<&'static str> {
    let mut found = Vec::new();
    let (type_minimum, type_maximum) = type_range(&field.kind());
    let is_number = is_number(&field.kind());
    let minimum = rules.minimum.unwrap_or(type_minimum);
    let maximum = rules.maximum.unwrap_or(type_maximum);
    if (rules.minimum.is_some() || rules.maximum.is_some()) && !is_number {
        found.push("a range, but it is not a number");
    }

    if minimum > maximum || minimum < type_minimum || maximum > type_maximum {
        found.push("a range that its type does not have");
    }

    let sized = matches!(field.kind(), Kind::String | Kind::Bytes) || field.is_map();
    if rules.max_bytes.is_some() && !sized {
        found.push("a limit of bytes, but its type has no bytes");
    }

    if rules.max_items.is_some() && field.cardinality() != Cardinality::Repeated {
        found.push("a limit of items, but it is a single value");
    }

    if rules.policy_includes_default && rules.default_value.is_none() {
        found.push("policy_includes_default without a default");
    }

    if rules.path && field.kind() != Kind::String {
        found.push("a path, but it is not a string");
    }

    let Some(default) = &rules.default_value else {
        return found;
    };
    if rules.required {
        found.push("required, but with a default");
    }

    if !field.supports_presence() {
        found.push("a default, but its presence is not recorded (`optional`)");
    }

    let fits = match default {
        DefaultValue::DefaultNumber(value) => is_number && (minimum..=maximum).contains(value),
        DefaultValue::DefaultBool(_) => field.kind() == Kind::Bool,
        DefaultValue::DefaultText(value) => text_fits(value, &field.kind(), rules),
    };
    if !fits {
        found.push("a default outside its limits, or not of its type");
    }

    found
}

/// The range of a number type, in the type of the options' limits.
fn type_range(kind: &Kind) -> (i64, i64) {
    match kind {
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => (i32::MIN.into(), i32::MAX.into()),
        Kind::Uint32 | Kind::Fixed32 => (0, u32::MAX.into()),
        Kind::Uint64 | Kind::Fixed64 => (0, i64::MAX),
        _ => (i64::MIN, i64::MAX),
    }
}

fn is_number(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::Int32
            | Kind::Sint32
            | Kind::Sfixed32
            | Kind::Uint32
            | Kind::Fixed32
            | Kind::Int64
            | Kind::Sint64
            | Kind::Sfixed64
            | Kind::Uint64
            | Kind::Fixed64
    )
}

/// Whether a field can have this default: a string within its limit, or a value of its enum.
fn text_fits(value: &str, kind: &Kind, rules: &FieldRules) -> bool {
    if let Kind::Enum(kind) = kind {
        return kind.get_value_by_name(value).is_some_and(|value| value.number() != 0);
    }
    let max_bytes = rules.max_bytes.unwrap_or(u32::MAX);
    *kind == Kind::String && u32::try_from(value.len()).is_ok_and(|size| size <= max_bytes)
}
