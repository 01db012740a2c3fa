//! Translates errors of canonical tools to the terms of a dialect. Their texts name fields and
//! values of the contract, which a caller of the dialect does not know.

use super::parameter::ParameterSpec;
use crate::daemon::error::{Error, Reason, Violation};

/// Prefixes of the contract's field paths, each with the dialect's name for it.
pub(super) type FieldAliases = &'static [(&'static str, &'static str)];

/// Prefix of the first edit's fields in the contract, and its field with the text to replace.
const FIRST_EDIT_PREFIX: &str = "edits[0].";
const FIRST_EDIT_OLD_STRING: &str = "edits[0].old_string";
/// Prefix of a violation that names the text to replace.
const SAME_STRING_PREFIX: &str = "must differ from old_string";
/// Suffix of a message that names an encoding.
const BASE64_HINT_SUFFIX: &str = ": for Base64 set encoding to ENCODING_BASE64";
/// Name of the parameter that selects the encoding of content.
const ENCODING_PARAM: &str = "encoding";

/// Rewrites an error with the dialect's names.
pub(super) fn translate_error(aliases: FieldAliases, mut error: Error) -> Error {
    if !error.violations.is_empty() {
        if aliases.is_empty() {
            return error;
        }
        let violations = error.violations.into_iter();
        return Error::invalid(violations.map(|one| translate_violation(aliases, one)).collect());
    }

    let value = |name: &str| {
        let entry = error.metadata.iter().find(|(key, _)| key == name);
        entry.map_or("", |(_, value)| value.as_str())
    };
    let edit = value("edit");
    let old = format!("{edit}.old_string");
    let old = translate_field(aliases, &old).unwrap_or(old);
    let is = |reason| error.reason == reason;
    let message = if is(Reason::StringNotUnique) {
        let (count, lines) = (value("occurrences"), value("lines"));
        let is_complete = lines.split(", ").count().to_string() == count;
        let more = if is_complete { "" } else { ", …" };
        Some(format!(
            "{old} occurs {count} times (lines {lines}{more}); include more of the surrounding text; nothing was changed"
        ))
    } else if is(Reason::StringNotFound) {
        let rest = error.message.strip_prefix(edit);
        rest.and_then(|rest| rest.strip_prefix(": old_string")).map(|rest| format!("{old}{rest}"))
    } else if is(Reason::LineRangeInvalid) {
        let rest = error.message.strip_prefix("start_line");
        rest.and_then(|rest| Some(format!("{}{rest}", translate_field(aliases, "start_line")?)))
    } else if is(Reason::BinaryFile) {
        let rest = error.message.strip_suffix(BASE64_HINT_SUFFIX);
        rest.map(|rest| format!("{rest}: it is not text"))
    } else {
        None
    };

    if let Some(message) = message {
        error.message = message.into();
    }
    if aliases.iter().any(|(field, _)| field.starts_with(FIRST_EDIT_PREFIX)) {
        // The dialect has only one edit, without a number.
        error.metadata.retain(|(name, _)| name != "edit");
    }
    error
}

/// What to try next, if the contract's suggestion does not apply to a tool with these parameters.
pub(super) fn suggestion(parameters: &[ParameterSpec], reason: Reason) -> Option<&'static str> {
    let has_encoding = || parameters.iter().any(|parameter| parameter.name == ENCODING_PARAM);
    if reason == Reason::BinaryFile && !has_encoding() {
        return Some("Look at it with a command.");
    }
    (reason == Reason::StringNotUnique).then_some("Include more of the surrounding text.")
}

fn translate_violation(aliases: FieldAliases, violation: Violation) -> Violation {
    let description = match (
        violation.description.strip_prefix(SAME_STRING_PREFIX),
        translate_field(aliases, FIRST_EDIT_OLD_STRING),
    ) {
        (Some(rest), Some(old)) => format!("must differ from {old}{rest}"),
        _ => violation.description,
    };
    Violation {
        field: translate_field(aliases, &violation.field).unwrap_or(violation.field),
        description,
    }
}

/// The dialect's name of a field path, if it differs.
fn translate_field(aliases: FieldAliases, field: &str) -> Option<String> {
    aliases.iter().find_map(|(prefix, name)| Some(format!("{name}{}", field.strip_prefix(prefix)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::text::edit::{Occurrence, StringEdit, apply};

    const SINGLE_EDIT: FieldAliases = &[("edits[0].", "")];
    const RENAMED_EDIT: FieldAliases =
        &[("edits[0].old_string", "old_str"), ("edits[0].new_string", "new_str")];

    fn edit_error(index: usize, text: &str, old: &str) -> Error {
        let edits: Vec<_> = (0..=index)
            .map(|number| {
                if number == index {
                    StringEdit::new(number, old.to_owned(), "n".to_owned(), Occurrence::Unique)
                } else {
                    StringEdit::new(number, "-".to_owned(), "+".to_owned(), Occurrence::All)
                }
                .unwrap()
            })
            .collect();
        apply(text, &edits, &|| Ok(()), &|_| Ok(())).unwrap_err()
    }

    #[test]
    fn edit_errors_use_the_names_of_the_dialect() {
        for (aliases, index, text, old, begin) in [
            (SINGLE_EDIT, 0, "a a", "a", "old_string occurs 2 times (lines 1, 1); include"),
            (RENAMED_EDIT, 0, "a\na", "a", "old_str occurs 2 times (lines 1, 2); include"),
            (&[], 1, "-a a", "a", "edits[1].old_string occurs 2 times (lines 1, 1); include"),
            (SINGLE_EDIT, 0, "b", "a", "old_string is not in the file; nothing was changed; "),
            (RENAMED_EDIT, 0, "b", "a", "old_str is not in the file; "),
            (&[], 1, "-", "a", "edits[1].old_string is not in the file as the edits before"),
        ] {
            let error = translate_error(aliases, edit_error(index, text, old));
            assert!(error.message.starts_with(begin), "{error}");
            assert!(!error.message.contains("OCCURRENCE"), "{error}");
            let is_numbered = error.metadata.iter().any(|(name, _)| name == "edit");
            assert_eq!(is_numbered, aliases.is_empty());
        }

        let many = translate_error(SINGLE_EDIT, edit_error(0, &"a ".repeat(11), "a"));
        assert!(many.message.contains(" 11 times (lines 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, …); "));

        let same =
            StringEdit::new(0, "a".to_owned(), "a".to_owned(), Occurrence::Unique).unwrap_err();
        let same = translate_error(RENAMED_EDIT, Error::invalid(vec![same]));
        assert_eq!(same.violations[0].field, "new_str");
        assert!(same.message.contains("must differ from old_str: "), "{same}");
    }

    #[test]
    fn line_and_encoding_errors_contain_no_contract_terms() {
        let late = Error::new(Reason::LineRangeInvalid, "start_line is 9, but there are 2");
        let error = translate_error(&[("start_line", "view_range")], late);
        assert_eq!(error.message, "view_range is 9, but there are 2");

        let binary = Error::new(
            Reason::BinaryFile,
            "\"f\" is not UTF-8: for Base64 set encoding to ENCODING_BASE64",
        );
        let error = translate_error(&[], binary);
        assert_eq!(error.message, "\"f\" is not UTF-8: it is not text");
    }
}
