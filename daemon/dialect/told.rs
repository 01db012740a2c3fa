//! What is wrong with a call of the contract, in words that the vocabulary has: its texts name fields and values
//! of the contract, which who spoke a dialect never saw.

use super::parameter::Parameter;
use crate::daemon::error::{Error, Reason, Violation};

/// What fields of a call begin with, and what that is in a vocabulary.
pub(super) type Names = &'static [(&'static str, &'static str)];

/// Where the contract has the edits of a call, and what one of them replaces.
const EDIT: &str = "edits[0].";
const OLD: &str = "edits[0].old_string";
/// How a text begins that names what is to be replaced.
const UNLIKE_OLD: &str = "must differ from old_string";
/// How a text ends that names an encoding.
const AS_BASE64: &str = ": for Base64 set encoding to ENCODING_BASE64";
/// What a parameter is called that says how content stands for bytes.
const ENCODING: &str = "encoding";

/// The same error, by these names.
pub(super) fn told(names: Names, mut error: Error) -> Error {
    if !error.violations.is_empty() {
        if names.is_empty() {
            return error;
        }
        let violations = error.violations.into_iter();
        return Error::invalid(violations.map(|one| violation(names, one)).collect());
    }
    let value = |name: &str| {
        let mut metadata = error.metadata.iter();
        let found = metadata.find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.as_str())
    };
    let edit = value("edit");
    let old = format!("{edit}.old_string");
    let old = known(names, &old).unwrap_or(old);
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
        rest.and_then(|rest| Some(format!("{}{rest}", known(names, "start_line")?)))
    } else if is(Reason::BinaryFile) {
        let rest = error.message.strip_suffix(AS_BASE64);
        rest.map(|rest| format!("{rest}: it is no text"))
    } else {
        None
    };
    if let Some(message) = message {
        error.message = message.into();
    }
    if names.iter().any(|(own, _)| own.starts_with(EDIT)) {
        // It is the only one, and has no number.
        error.metadata.retain(|(name, _)| name != "edit");
    }
    error
}

/// What to try next, where what the contract says cannot be done with these parameters.
pub(super) fn suggestion(parameters: &[Parameter], reason: Reason) -> Option<&'static str> {
    let has_encoding = || parameters.iter().any(|known| known.name == ENCODING);
    if reason == Reason::BinaryFile && !has_encoding() {
        return Some("Look at it with a command.");
    }
    (reason == Reason::StringNotUnique).then_some("Give more of the text around it.")
}

fn violation(names: Names, violation: Violation) -> Violation {
    let description = match (violation.description.strip_prefix(UNLIKE_OLD), known(names, OLD)) {
        (Some(rest), Some(old)) => format!("must differ from {old}{rest}"),
        _ => violation.description,
    };
    Violation { field: known(names, &violation.field).unwrap_or(violation.field), description }
}

/// What a field of a call is called, where that is something else.
fn known(names: Names, field: &str) -> Option<String> {
    let mut names = names.iter();
    names.find_map(|(own, name)| Some(format!("{name}{}", field.strip_prefix(own)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::text::edit::{Edit, Which, apply};

    const ONE: Names = &[("edits[0].", "")];
    const SHORT: Names = &[("edits[0].old_string", "old_str"), ("edits[0].new_string", "new_str")];

    fn refused(index: usize, text: &str, old: &str) -> Error {
        let edits: Vec<_> = (0..=index)
            .map(|number| match number == index {
                true => Edit::new(number, old.to_owned(), "n".to_owned(), Which::Unique).unwrap(),
                false => Edit::new(number, "-".to_owned(), "+".to_owned(), Which::All).unwrap(),
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
            let error = told(names, refused(index, text, old));
            assert!(error.message.starts_with(begin), "{error}");
            assert!(!error.message.contains("OCCURRENCE"), "{error}");
            let is_numbered = error.metadata.iter().any(|(name, _)| name == "edit");
            assert_eq!(is_numbered, names.is_empty());
        }
        let many = told(ONE, refused(0, &"a ".repeat(11), "a"));
        assert!(many.message.contains(" 11 times, at lines 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, …; "));
        let same = Edit::new(0, "a".to_owned(), "a".to_owned(), Which::Unique).unwrap_err();
        let same = told(SHORT, Error::invalid(vec![same]));
        assert_eq!(same.violations[0].field, "new_str");
        assert!(same.message.contains("must differ from old_str: "), "{same}");
    }

    #[test]
    fn lines_and_bytes_are_told_without_what_only_the_contract_has() {
        let late = Error::new(Reason::LineRangeInvalid, "start_line is 9, but there are 2");
        let error = told(&[("start_line", "view_range")], late);
        assert_eq!(error.message, "view_range is 9, but there are 2");
        let binary = Error::new(
            Reason::BinaryFile,
            "\"f\" is not UTF-8: for Base64 set encoding to ENCODING_BASE64",
        );
        let error = told(&[], binary);
        assert_eq!(error.message, "\"f\" is not UTF-8: it is no text");
    }
}
