//! Keys and values of the configuration file that have new names.
//!
//! The daemon accepts the old names for one release and warns about each at start.

use toml::{Table, Value};

/// Renamed keys: table, old name, new name. A table name stands for each table of an array.
const RENAMED_KEYS: [(&str, &str, &str); 15] = [
    ("sandbox", "grace", "stop_grace"),
    ("limits", "queue_wait", "queue_timeout"),
    ("requests", "kept", "max_entries"),
    ("requests", "kept_bytes", "max_bytes"),
    ("requests", "linger", "detached_timeout"),
    ("jobs", "kept", "max_entries"),
    ("jobs", "kept_bytes", "max_bytes"),
    ("jobs", "queued", "max_queued"),
    ("jobs", "queued_bytes", "max_queued_bytes"),
    ("jobs", "concurrent", "concurrency"),
    ("sessions", "kept", "max_entries"),
    ("sessions", "kept_bytes", "max_bytes"),
    ("sessions", "record_bytes", "max_record_bytes"),
    ("approvals", "wait", "timeout"),
    ("approvals", "pending", "max_pending"),
];
/// Renamed values: table, key, old value, new value.
const RENAMED_VALUES: [(&str, &str, &str, &str); 5] = [
    ("sandbox", "home", "fresh", "ephemeral"),
    ("sandbox", "home", "keep", "persistent"),
    ("workspaces", "home", "fresh", "ephemeral"),
    ("workspaces", "home", "keep", "persistent"),
    ("workspaces", "symlinks", "beneath", "within"),
];

/// Replaces old names in `file` by new ones. Returns one warning for each old name.
///
/// # Errors
///
/// Fails if a table has both names of a key.
pub(super) fn upgrade(file: &mut Table) -> Result<Vec<String>, String> {
    let mut warnings = Vec::new();

    for (section, old, new) in RENAMED_KEYS {
        let mut found = false;
        for table in tables(file, section) {
            let Some(value) = table.remove(old) else {
                continue;
            };
            found = true;
            if table.insert(new.to_owned(), value).is_some() {
                return Err(format!(
                    "[{section}] has {old} and {new}, which are the same key: remove {old}"
                ));
            }
        }
        if found {
            warnings.push(format!("{section}.{old} is now {section}.{new}"));
        }
    }

    for (section, key, old, new) in RENAMED_VALUES {
        let mut found = false;
        for table in tables(file, section) {
            let Some(value) = table.get_mut(key).filter(|value| value.as_str() == Some(old)) else {
                continue;
            };
            *value = new.into();
            found = true;
        }
        if found {
            warnings.push(format!("{section}.{key} = {old:?} is now {section}.{key} = {new:?}"));
        }
    }

    Ok(warnings)
}

/// The table of this name, or each table of the array of this name.
fn tables<'a>(file: &'a mut Table, section: &str) -> Vec<&'a mut Table> {
    match file.get_mut(section) {
        Some(Value::Table(table)) => vec![table],
        Some(Value::Array(array)) => array.iter_mut().filter_map(Value::as_table_mut).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upgraded(text: &str) -> (Table, Result<Vec<String>, String>) {
        let mut file = toml::from_str(text).unwrap();
        let result = upgrade(&mut file);
        (file, result)
    }

    #[test]
    fn old_names_become_new_ones_with_a_warning_each() {
        let (file, warnings) = upgraded(
            "[requests]\nlinger = \"5s\"\n[sandbox]\nhome = \"keep\"\n[[workspaces]]\npath = \"a\"\nsymlinks = \"beneath\"\n[[workspaces]]\npath = \"b\"\nhome = \"fresh\"\nsymlinks = \"beneath\"",
        );
        let expected: Table = toml::from_str(
            "[requests]\ndetached_timeout = \"5s\"\n[sandbox]\nhome = \"persistent\"\n[[workspaces]]\npath = \"a\"\nsymlinks = \"within\"\n[[workspaces]]\npath = \"b\"\nhome = \"ephemeral\"\nsymlinks = \"within\"",
        )
        .unwrap();
        assert_eq!(file, expected);
        assert_eq!(
            warnings.unwrap(),
            [
                "requests.linger is now requests.detached_timeout",
                "sandbox.home = \"keep\" is now sandbox.home = \"persistent\"",
                "workspaces.home = \"fresh\" is now workspaces.home = \"ephemeral\"",
                "workspaces.symlinks = \"beneath\" is now workspaces.symlinks = \"within\"",
            ]
        );
    }

    #[test]
    fn new_names_stay_without_a_warning() {
        let text = "keys = \"k\"\n[requests]\ndetached_timeout = \"5s\"\n[sandbox]\nhome = \"keeper\"\ngraces = 1";
        let (file, warnings) = upgraded(text);
        assert_eq!(file, toml::from_str(text).unwrap());
        assert_eq!(warnings, Ok(Vec::new()));
    }

    #[test]
    fn both_names_of_a_key_are_an_error() {
        let (_, result) = upgraded("[jobs]\nkept = 1\nmax_entries = 2");
        assert_eq!(
            result.unwrap_err(),
            "[jobs] has kept and max_entries, which are the same key: remove kept"
        );
    }
}
