//! What is wrong with a call of the contract, in words that the vocabulary has: its texts name fields and values
//! of the contract, which who spoke a dialect never saw.

use super::parameter::ParameterSpec;
use crate::daemon::error::{Error, Reason, Violation};

/// What fields of a call begin with, and what that is in a vocabulary.
pub(super) type FieldAliases = &'static [(&'static str, &'static str)];

/// Where the contract has the edits of a call, and what one of them replaces.
const FIRST_EDIT_PREFIX: &str = "edits[0].";
const FIRST_EDIT_OLD_STRING: &str = "edits[0].old_string";
/// How a text begins that names what is to be replaced.
const SAME_STRING_PREFIX: &str = "must differ from old_string";
/// How a text ends that names an encoding.
const BASE64_HINT_SUFFIX: &str = ": for Base64 set encoding to ENCODING_BASE64";
/// What a parameter is called that says how content stands for bytes.
const ENCODING_PARAM: &str = "encoding";

/// The same error, by these names.
pub(super) fn translate_error(names: FieldAliases, mut error: Error) -> Error {
    if !error.violations.is_empty() {
        if names.is_empty() {
            return error;
        }
        let violations = error.violations.into_iter();
        return Error::invalid(violations.map(|one| translate_violation(names, one)).collect());
    }
    let value = |name: &str| {
        let mut metadata = error.metadata.iter();
        let found = metadata.find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.as_str())
    };
    let edit = value("edit");
    let old = format!("{edit}.old_string");
    let old = translate_field(names, &old).unwrap_or(old);
    let is = |reason| error.reason == reason;
    let message = if is(Reason::StringNotUnique) {
        let (found, lines) = (value("occurrences"), value("lines"));
        let is_all = lines.split(", ").count().to_string() == found;
        let more = if is_all { "" } else { ", …" };
        Some(format!(
            "{old} is there {found} times, at lines {lines}{more}; give more of the text around the one that you mean; nothing was changed"
        ))
    } else if is(Reason::StringNotFound) {
        let rest = error.message.strip_prefix(edit);
        let rest = rest.and_then(|rest| rest.strip_prefix(": old_string"));
        rest.map(|rest| format!("{old}{rest}"))
    } else if is(Reason::LineRangeInvalid) {
        let rest = error.message.strip_prefix("start_line");
        rest.and_then(|rest| Some(format!("{}{rest}", translate_field(names, "start_line")?)))
    } else if is(Reason::BinaryFile) {
        let rest = error.message.strip_suffix(BASE64_HINT_SUFFIX);
        rest.map(|rest| format!("{rest}: it is no text"))
    } else {
        None
    };
    if let Some(message) = message {
        error.message = message.into();
    }
    if names.iter().any(|(own, _)| own.starts_with(FIRST_EDIT_PREFIX)) {
        // It is the only one, and has no number.
        error.metadata.retain(|(name, _)| name != "edit");
    }
    error
}

/// What to try next, where what the contract says cannot be done with these parameters.
pub(super) fn suggestion(parameters: &[ParameterSpec], reason: Reason) -> Option<&'static str> {
    let has_encoding = || parameters.iter().any(|known| known.name == ENCODING_PARAM);
    if reason == Reason::BinaryFile && !has_encoding() {
        return Some("Look at it with a command.");
    }
    (reason == Reason::StringNotUnique).then_some("Give more of the text around it.")
}

fn translate_violation(names: FieldAliases, violation: Violation) -> Violation {
    let description = match (
        violation.description.strip_prefix(SAME_STRING_PREFIX),
        translate_field(names, FIRST_EDIT_OLD_STRING),
    ) {
        (Some(rest), Some(old)) => format!("must differ from {old}{rest}"),
        _ => violation.description,
    };
    Violation {
        field: translate_field(names, &violation.field).unwrap_or(violation.field),
        description,
    }
}

/// What a field of a call is called, where that is something else.
fn translate_field(names: FieldAliases, field: &str) -> Option<String> {
    let mut names = names.iter();
    names.find_map(|(own, name)| Some(format!("{name}{}", field.strip_prefix(own)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::text::edit::{Occurrence, StringEdit, apply};

    const ONE: FieldAliases = &[("edits[0].", "")];
    const SHORT: FieldAliases =
        &[("edits[0].old_string", "old_str"), ("edits[0].new_string", "new_str")];

    fn refused(index: usize, text: &str, old: &str) -> Error {
        let edits: Vec<_> = (0..=index)
            .map(|number| match number == index {
                true => StringEdit::new(number, old.to_owned(), "n".to_owned(), Occurrence::Unique)
                    .unwrap(),
                false => StringEdit::new(number, "-".to_owned(), "+".to_owned(), Occurrence::All)
                    .unwrap(),
            })
            .collect();
        apply(text, &edits, &|| Ok(()), &|_| Ok(())).unwrap_err()
    }

    #[test]
    fn edits_are_told_by_the_names_of_their_parameters() {
        for (names, index, text, old, begin) in [
            (ONE, 0, "a a", "a", "old_string is there 2 times, at lines 1, 1; give more"),
            (SHORT, 0, "a\na", "a", "old_str is there 2 times, at lines 1, 2; give more"),
            (&[], 1, "-a a", "a", "edits[1].old_string is there 2 times, at lines 1, 1; give"),
            (ONE, 0, "b", "a", "old_string is not in the file; nothing was changed; "),
            (SHORT, 0, "b", "a", "old_str is not in the file; "),
            (&[], 1, "-", "a", "edits[1].old_string is not in the file as the edits before"),
        ] {
            let error = translate_error(names, refused(index, text, old));
            assert!(error.message.starts_with(begin), "{error}");
            assert!(!error.message.contains("OCCURRENCE"), "{error}");
            let is_numbered = error.metadata.iter().any(|(name, _)| name == "edit");
            assert_eq!(is_numbered, names.is_empty());
        }
        let many = translate_error(ONE, refused(0, &"a ".repeat(11), "a"));
        assert!(many.message.contains(" 11 times, at lines 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, …; "));
        let same =
            StringEdit::new(0, "a".to_owned(), "a".to_owned(), Occurrence::Unique).unwrap_err();
        let same = translate_error(SHORT, Error::invalid(vec![same]));
        assert_eq!(same.violations[0].field, "new_str");
        assert!(same.message.contains("must differ from old_str: "), "{same}");
    }

    #[test]
    fn lines_and_bytes_are_told_without_what_only_the_contract_has() {
        let late = Error::new(Reason::LineRangeInvalid, "start_line is 9, but there are 2");
        let error = translate_error(&[("start_line", "view_range")], late);
        assert_eq!(error.message, "view_range is 9, but there are 2");
        let binary = Error::new(
            Reason::BinaryFile,
            "\"f\" is not UTF-8: for Base64 set encoding to ENCODING_BASE64",
        );
        let error = translate_error(&[], binary);
        assert_eq!(error.message, "\"f\" is not UTF-8: it is no text");
    }
}
