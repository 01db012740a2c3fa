//! Names that were probably meant.

/// How alike two names must be, from 0 to 1 (Jaro and Winkler), for one to be a slip of the other.
const MIN_SIMILARITY: f64 = 0.8;

/// Shortest name that is looked for within another: one letter is in most of them.
const MIN_SUBSTRING_BYTES: usize = 3;

/// What is said of a name that is not among the `known` ones.
pub(crate) fn unknown_parameter_message(name: &str, known: &[&str]) -> String {
    if known.is_empty() {
        return "is not known: there are no parameters".to_owned();
    }
    let all = known.join(", ");
    match closest_name(name, known) {
        Some(meant) => format!("is not known: {meant} was probably meant; there are {all}"),
        None => format!("is not known; there are {all}"),
    }
}

/// What is said of the name of a tool that is not among the `known` ones, those that are open to who asks.
pub(crate) fn unknown_tool_message(name: &str, known: &[&str]) -> String {
    if known.is_empty() {
        return format!("no tool {name:?}, and none that is open to you");
    }
    let all = known.join(", ");
    match closest_name(name, known) {
        Some(meant) => format!("no tool {name:?}: {meant} was probably meant; there are {all}"),
        None => format!("no tool {name:?}; there are {all}"),
    }
}

/// The known name that is most like this one, if any is like it.
pub(crate) fn closest_name<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    // What is longer than any name is no slip.
    let name = name.get(..name.len().min(64)).unwrap_or_default().to_lowercase();
    let likeness = known.iter().map(|known| {
        let likeness = strsim::jaro_winkler(&name, &known.to_lowercase());
        // One within the other is an abbreviation: `path` for `file_path`.
        let is_long = name.len().min(known.len()) >= MIN_SUBSTRING_BYTES;
        let within = is_long && (known.contains(name.as_str()) || name.contains(*known));
        (*known, likeness.max(if within { MIN_SIMILARITY } else { 0.0 }))
    });
    likeness
        .filter(|(_, likeness)| *likeness >= MIN_SIMILARITY)
        .max_by(|(_, one), (_, other)| one.total_cmp(other))
        .map(|(known, _)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised() {
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
