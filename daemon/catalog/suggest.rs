//! "Did you mean": suggests the name that was probably meant.

/// Least similarity of two names for one to be a misspelling of the other. From 0 to 1
/// (Jaro–Winkler).
const MIN_JARO_WINKLER_SIMILARITY: f64 = 0.8;

/// Shortest name to search for within another. Most names contain a given letter.
const MIN_SUBSTRING_BYTES: usize = 3;

/// The error text for a parameter that is not among the `known` ones.
pub(crate) fn unknown_parameter_message(name: &str, known: &[&str]) -> String {
    if known.is_empty() {
        return "is unknown: there are no parameters".to_owned();
    }
    let all = known.join(", ");
    match closest_name(name, known) {
        Some(meant) => format!("is unknown: did you mean {meant}? Known: {all}"),
        None => format!("is unknown. Known: {all}"),
    }
}

/// The error text for a tool that is not among the `known` ones. Those are the tools that the
/// caller may access.
pub(crate) fn unknown_tool_message(name: &str, known: &[&str]) -> String {
    if known.is_empty() {
        return format!("unknown tool {name:?}: your key allows no tools");
    }
    let all = known.join(", ");
    match closest_name(name, known) {
        Some(meant) => format!("unknown tool {name:?}: did you mean {meant}? Known: {all}"),
        None => format!("unknown tool {name:?}. Known: {all}"),
    }
}

/// The known name that is most similar, if any is similar enough.
pub(crate) fn closest_name<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    // A longer name is no misspelling.
    let name = name.get(..name.len().min(64)).unwrap_or_default().to_lowercase();

    known
        .iter()
        .map(|known| {
            let similarity = strsim::jaro_winkler(&name, &known.to_lowercase());
            // A name within the other is an abbreviation: `path` for `file_path`.
            let is_long = name.len().min(known.len()) >= MIN_SUBSTRING_BYTES;
            let is_within = is_long && (known.contains(name.as_str()) || name.contains(*known));
            (*known, similarity.max(if is_within { MIN_JARO_WINKLER_SIMILARITY } else { 0.0 }))
        })
        .filter(|(_, similarity)| *similarity >= MIN_JARO_WINKLER_SIMILARITY)
        .max_by(|(_, one), (_, other)| one.total_cmp(other))
        .map(|(known, _)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_names_are_recognized() {
        let known = ["file_path", "content", "create_directories"];
        for (name, meant) in [
            ("path", Some("file_path")),
            ("filepath", Some("file_path")),
            ("contents", Some("content")),
            ("create_dirs", Some("create_directories")),
            ("zebra", None),
            ("x", None),
            ("te", None),
            ("", None),
        ] {
            assert_eq!(closest_name(name, &known), meant, "{name}");
        }
    }
}
