//! Names of types, and of the parties in prose.

use std::collections::BTreeMap;

use super::{
    assert_none,
    files::{committed_files, package_files},
    imports::Sources,
    tokens::{Token, without_tests},
};

/// Names that several types may have, and the reason.
const ALLOWED_DUPLICATES: &[(&str, &str)] = &[
    ("Params", "each tool's own checked parameters, used as `read_file::Params`"),
    ("Daemon", "the benchmarks' daemon, and its stand-in where the feature is off"),
];

/// Words that hide which party acts, such as the caller, client, daemon, operator or sandbox.
const PRONOUNS: &[&str] =
    &["anybody", "he", "him", "himself", "his", "nobody", "somebody", "whoever", "whom"];

#[test]
fn type_names_are_unique() {
    assert_none("type names with several definitions", duplicates(&package_files()));

    let sources = |texts: &[&str]| -> Sources {
        let numbered = texts.iter().enumerate();
        numbered.map(|(number, text)| (format!("{number}.rs"), (*text).to_owned())).collect()
    };
    let found = |texts: &[&str]| duplicates(&sources(texts));
    assert_eq!(found(&["struct A;", "pub(crate) enum A {}"]), ["A: 0.rs, 1.rs"]);
    assert_eq!(found(&["type A = u8;", "trait A {}"]), ["A: 0.rs, 1.rs"]);
    assert_eq!(found(&["impl X for Y { type A = u8; }", "struct A;"]), [""; 0]);
    assert_eq!(found(&["struct A;", "#[cfg(test)]\nmod tests { struct A; }"]), [""; 0]);
    assert_eq!(found(&["struct Params;", "struct Params;"]), [""; 0]);
}

#[test]
fn prose_names_the_parties() {
    let mut sources = package_files();
    sources.extend(committed_files().into_iter().filter(|(file, _)| {
        let is_page = file.ends_with(".md") && !file.starts_with("tests/");
        is_page || file.starts_with("proto/")
    }));
    let found =
        sources.iter().filter(|(file, _)| !file.contains("tests")).flat_map(|(file, text)| {
            let lines = pronouns(text).into_iter();
            lines.map(move |(line, word)| format!("{file}:{line}: {word}"))
        });
    assert_none("pronouns for parties", found);
    assert_eq!(pronouns("// Whoever calls\nlet he = 1; // `his`"), [(1, "Whoever"), (2, "he")]);
    assert_eq!(pronouns("where the\n#[cfg(test)]\nmod tests {\n// his"), []);
}

/// The pronouns of a text before its unit tests, outside backquotes, with their lines.
fn pronouns(text: &str) -> Vec<(usize, &str)> {
    let before_tests = text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = before_tests.lines().enumerate();
    lines
        .flat_map(|(index, line)| {
            // A line of passwd(5) names a user.
            let line = if line.contains(":65534:") { "" } else { line };
            let outside = line.split('`').step_by(2);
            let words =
                outside.flat_map(|part| part.split(|c: char| !c.is_alphanumeric() && c != '_'));
            words.map(move |word| (index + 1, word))
        })
        .filter(|(_, word)| PRONOUNS.contains(&word.to_lowercase().as_str()))
        .collect()
}

/// Each name that several types have, with their files.
fn duplicates(sources: &Sources) -> Vec<String> {
    let mut files: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (file, text) in sources {
        for name in type_names(text) {
            files.entry(name).or_default().push(file);
        }
    }

    let is_role = |name: &str| ALLOWED_DUPLICATES.iter().any(|(role, _)| *role == name);
    files
        .into_iter()
        .filter(|(name, files)| files.len() > 1 && !is_role(name))
        .map(|(name, files)| format!("{name}: {}", files.join(", ")))
        .collect()
}

/// The types that a source file defines outside its tests. A `type` within braces belongs to a trait.
fn type_names(text: &str) -> Vec<String> {
    let tokens = without_tests(text);
    let mut depth = 0_usize;

    let mut names = Vec::new();
    for pair in tokens.windows(2) {
        match (&pair[0].1, &pair[1].1) {
            (Token::Symbol('{'), _) => depth += 1,
            (Token::Symbol('}'), _) => depth = depth.saturating_sub(1),
            (Token::Word(keyword), Token::Word(name)) => {
                let defines = match keyword.as_str() {
                    "struct" | "enum" | "union" | "trait" => true,
                    "type" => depth == 0,
                    _ => false,
                };
                if defines {
                    names.push(name.clone());
                }
            }
            _ => {}
        }
    }

    names
}
