//! What a key file says, and what is wrong with it.

use std::{
    collections::{BTreeSet, HashSet},
    fmt,
    fs::File,
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use super::{
    secret::{KEY_PREFIX, KeyDigest, redacted_name},
    trusted_path::{GROUP_OTHER_WRITE, open, open_trusted},
};

/// Most keys of a file, which is read as a whole.
const MAX_KEYS: usize = 4096;
/// Longest name of a key, in bytes.
const MAX_KEY_NAME_BYTES: usize = 64;
/// Largest rate, burst and concurrency.
const MAX_CALL_LIMIT: u32 = 1_000_000;
/// The fields of a `[[keys]]` table.
const KEY_FIELDS: [&str; 10] = [
    "name",
    "role",
    "sha256",
    "workspaces",
    "tools",
    "calls_per_second",
    "burst",
    "concurrent_calls",
    "expires",
    "created",
];

/// What a caller may do. Each may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AccessRole {
    /// Look: at the catalog, the daemon, and what goes on.
    Read,
    /// Call tools.
    Invoke,
    /// Everything: also decide about the calls of others.
    Admin,
}

/// The keys of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyFile {
    /// Where they were read.
    pub(crate) path: PathBuf,
    /// The keys, in the order of the file.
    pub(crate) keys: Vec<ApiKey>,
}

/// A key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiKey {
    /// What its holder is called in records.
    pub(crate) name: String,
    /// What its holder may do.
    pub(crate) role: AccessRole,
    /// What it is known by.
    pub(crate) digest: KeyDigest,
    /// The workspaces that it is for; without, all.
    pub(crate) workspaces: Option<BTreeSet<String>>,
    /// The tools that it is for; without, all.
    pub(crate) tools: Option<BTreeSet<String>>,
    /// How much it may do.
    pub(crate) limits: KeyLimits,
    /// When it stops being one.
    pub(crate) expires: Option<SystemTime>,
}

/// How much one caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct KeyLimits {
    /// Calls per second, on average, and at once; without, as many as come.
    pub(crate) rate: Option<RateLimit>,
    /// Calls at one time; without, as many as the daemon takes.
    pub(crate) concurrent_calls: Option<u32>,
}

/// How often something may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateLimit {
    /// Per second, on average.
    pub(crate) per_second: u32,
    /// At once.
    pub(crate) burst: u32,
}

/// The file, as it is written.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawKeyFile {
    #[serde(default)]
    pub(super) keys: Vec<KeyTable>,
}

/// One `[[keys]]` table.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyTable {
    pub(super) name: String,
    pub(super) role: AccessRole,
    pub(super) sha256: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) workspaces: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tools: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) calls_per_second: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) burst: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) concurrent_calls: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) created: Option<String>,
}

impl KeyFile {
    /// Reads the file at `path`. A problem names the key and the field.
    pub(crate) fn read(path: &Path) -> Result<Self, Vec<String>> {
        let shown = path.display();
        let written = open_trusted(path).and_then(RawKeyFile::from_file);
        let written = written.map_err(|problem| vec![format!("--keys {shown}: {problem}")])?;
        let mut problems = Vec::new();
        let keys = check_keys(written, &mut problems);
        if problems.is_empty() {
            return Ok(Self { path: path.to_owned(), keys });
        }
        let named = problems.into_iter().map(|problem| format!("--keys {shown}: {problem}"));
        Err(named.collect())
    }
}

impl RawKeyFile {
    /// Reads the file at `path`.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        Self::from_file(open(path)?)
    }

    fn from_file(file: File) -> Result<Self, String> {
        let metadata = file.metadata().map_err(|error| error.to_string())?;
        if metadata.mode() & GROUP_OTHER_WRITE != 0 {
            return Err(format!(
                "others than its owner may write to it (mode {:04o}), and so let in whom they like: chmod go-w it",
                metadata.mode() & 0o7777
            ));
        }
        let text = io::read_to_string(file).map_err(|error| error.to_string())?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self, String> {
        // What the parser says shows what was written, which may be a key.
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let start = error.span().map_or(0, |span| span.start);
            let before = text.get(..start).unwrap_or_default();
            let line = before.matches('\n').count();
            let written = text.lines().nth(line).unwrap_or_default();
            format!("line {}: {}", line + 1, explain_parse_error(error.message(), written))
        })
    }
}

/// What is wrong with a line, without anything that was written in it.
fn explain_parse_error(message: &str, line: &str) -> String {
    let known = KEY_FIELDS.join(", ");
    if message.starts_with("missing field") {
        let missing = |field: &&&str| message.contains(&format!("`{field}`"));
        let field = KEY_FIELDS.iter().find(missing).copied().unwrap_or("keys");
        return format!("missing field {field}");
    }
    if message.starts_with("unknown field") {
        return format!("a field that there is not: a [[keys]] table has {known}");
    }
    let name = line.split('=').next().unwrap_or_default().trim();
    let field = KEY_FIELDS.iter().find(|field| **field == name);
    let is_value = message.starts_with("unknown variant") || message.starts_with("invalid");
    match field {
        Some(&"role") if is_value => "role must be \"read\", \"invoke\" or \"admin\"".to_owned(),
        Some(field) => format!("{field} has no value that it can have, or none that TOML knows"),
        None => format!("this is no TOML, or no [[keys]] table with {known}"),
    }
}

/// Checks what was written.
pub(super) fn check_keys(written: RawKeyFile, problems: &mut Vec<String>) -> Vec<ApiKey> {
    if written.keys.len() > MAX_KEYS {
        problems.push(format!("holds {} keys; {MAX_KEYS} are the most", written.keys.len()));
    }
    let (mut names, mut digests) = (HashSet::new(), HashSet::new());
    let mut keys = Vec::new();
    for (index, key) in written.keys.into_iter().enumerate() {
        let name = match is_key_name(&key.name) {
            true => redacted_name(&key.name),
            // Whatever it is, it is in the wrong place.
            false => format!("number {}", index + 1),
        };
        let mut report = |text: String| problems.push(format!("key {name}: {text}"));
        if !is_key_name(&key.name) {
            report(NAME_RULE.to_owned());
        }
        if !names.insert(key.name.clone()) {
            report("two keys have this name".to_owned());
        }
        let digest = KeyDigest::parse(&key.sha256);
        if digest.is_none() {
            report("sha256 must be 64 hexadecimal digits, as `jig key new` writes them".to_owned());
        }
        if digest.is_some_and(|digest| !digests.insert(digest)) {
            report("two entries are for the same key".to_owned());
        }
        for (field, number) in [
            ("calls_per_second", key.calls_per_second),
            ("burst", key.burst),
            ("concurrent_calls", key.concurrent_calls),
        ] {
            if number.is_some_and(|number| !(1..=MAX_CALL_LIMIT).contains(&number)) {
                report(format!("{field} must be from 1 to {MAX_CALL_LIMIT}"));
            }
        }
        if key.burst.is_some() && key.calls_per_second.is_none() {
            report("burst says nothing without calls_per_second".to_owned());
        }
        for (field, list) in [("workspaces", &key.workspaces), ("tools", &key.tools)] {
            if list.as_ref().is_some_and(Vec::is_empty) {
                report(format!("{field} is empty: name some, or leave it out for all"));
            }
        }
        let expires = key.expires.as_deref().map(parse_expiry);
        if let Some(Err(problem)) = &expires {
            report(problem.clone());
        }
        keys.push(ApiKey {
            name: key.name,
            role: key.role,
            digest: digest.unwrap_or_default(),
            workspaces: key.workspaces.map(|names| names.into_iter().collect()),
            tools: key.tools.map(|names| names.into_iter().collect()),
            limits: KeyLimits {
                rate: key.calls_per_second.map(|per_second| RateLimit {
                    per_second,
                    burst: key.burst.unwrap_or(per_second),
                }),
                concurrent_calls: key.concurrent_calls,
            },
            expires: expires.and_then(Result::ok),
        });
    }
    keys
}

/// What a name must be like.
const NAME_RULE: &str = "a name has 1 to 64 letters, digits, dots, underscores and hyphens, and nothing in it that keys begin with";

fn is_key_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_like_a_key = text.contains(KEY_PREFIX);
    (1..=MAX_KEY_NAME_BYTES).contains(&text.len()) && text.bytes().all(allowed) && !is_like_a_key
}

/// Reads when a key ends.
fn parse_expiry(text: &str) -> Result<SystemTime, String> {
    let problem = || "expires: give a time such as \"2027-01-31T00:00:00Z\"".to_owned();
    let time: prost_types::Timestamp = text.parse().map_err(|_| problem())?;
    SystemTime::try_from(time).map_err(|_| problem())
}

impl AccessRole {
    /// Its name in the key file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Invoke => "invoke",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for AccessRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let mut problems = Vec::new();
        match RawKeyFile::parse(text) {
            Ok(written) => drop(check_keys(written, &mut problems)),
            Err(problem) => problems.push(problem),
        }
        problems
    }

    fn key(more: &str) -> String {
        let digest = "0".repeat(64);
        format!("[[keys]]\nname = \"a\"\nrole = \"invoke\"\nsha256 = \"{digest}\"\n{more}\n")
    }

    #[test]
    fn every_problem_of_every_key_is_told() {
        assert_eq!(problems(&key("")), [""; 0]);
        assert_eq!(
            problems(&key(
                "workspaces = [\"w\"]\ntools = [\"run\"]\ncalls_per_second = 1\nburst = 3\nconcurrent_calls = 2\nexpires = \"2027-01-31T00:00:00Z\"\ncreated = \"x\""
            )),
            [""; 0]
        );
        let other = "[[keys]]\nname = \"a b\"\nrole = \"read\"\nsha256 = \"00\"\nburst = 0\ntools = []\nexpires = \"soon\"\n";
        let found = problems(&(key("calls_per_second = 0") + other + &key("")));
        for part in [
            "calls_per_second must be",
            "key number 2: a name has",
            "key number 2: sha256",
            "key number 2: burst must be",
            "key number 2: burst says nothing",
            "key number 2: tools is empty",
            "key number 2: expires: give",
            "two keys have this name",
            "two entries are for the same key",
        ] {
            assert!(found.iter().any(|problem| problem.contains(part)), "{part}: {found:#?}");
        }
        for bad in ["roles = 1", "[[keys]]\nname = \"a\"", &key("key = \"x\"")] {
            assert_eq!(problems(bad).len(), 1, "{bad}");
        }
    }

    #[test]
    fn a_problem_never_shows_what_may_be_a_key() {
        let fields = KEY_FIELDS.into_iter().flat_map(|field| {
            let others = key("").lines().map(str::to_owned).collect::<Vec<_>>();
            let others = others.into_iter().filter(|line| !line.starts_with(&format!("{field} =")));
            let others: Vec<_> = others.collect();
            ["\"jig_secret\"", "[\"jig_secret\"]", "jig_secret", "\"jig_secret"]
                .map(|value| (field, format!("{}\n{field} = {value}\n", others.join("\n"))))
        });
        // Where any text can stand.
        let may_be_right = ["workspaces", "tools", "created"];
        let other = [
            "keys = \"jig_secret",
            "jig_secret",
            "jig_secret = 1",
            "[[jig_secret]]",
            "[[keys]]\njig_secret\n",
            "[[keys]]\nname = \"a`jig_secret`\"\nrole = \"`jig_secret\"",
            &key("jig_secret = 1 1"),
            &key("jig_secret = 1"),
            &key("jig_secret = 1\njig_secret = 1"),
        ];
        let other = other.map(|bad| ("", bad.to_owned()));
        for (field, bad) in fields.chain(other) {
            let found = problems(&bad);
            assert!(!found.is_empty() || may_be_right.contains(&field), "{bad}");
            assert!(!found.concat().contains("secret"), "{bad}: {found:?}");
        }
        // And the line is told.
        let told = problems("[[keys]]\nname = \"a\"\nburst = \"jig_secret\"").concat();
        assert!(told.contains("line 3: burst"), "{told}");
        let told = problems("[[keys]]\nname = \"a\"\nrole = \"jig_secret\"").concat();
        assert!(told.contains("line 3: role must be"), "{told}");
    }

    #[test]
    fn two_digests_that_are_none_are_not_the_same_key() {
        let bad =
            |name: &str| format!("[[keys]]\nname = {name:?}\nrole = \"read\"\nsha256 = \"0\"\n");
        let found = problems(&(bad("a") + &bad("b")));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|problem| problem.contains("64")), "{found:?}");
    }

    #[test]
    fn a_file_that_others_may_write_to_is_refused() {
        use std::{fs, os::unix::fs::PermissionsExt as _};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        let with_mode = |mode: u32| {
            fs::write(&path, key("")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            KeyFile::read(&path)
        };
        for mode in [0o600, 0o640, 0o444] {
            assert_eq!(with_mode(mode).unwrap().keys.len(), 1);
        }
        for mode in [0o620, 0o602, 0o666] {
            let problem = with_mode(mode).unwrap_err().concat();
            assert!(problem.contains("chmod go-w"), "{problem}");
        }
        let missing = KeyFile::read(&folder.path().join("none")).unwrap_err();
        assert!(missing.concat().contains("jig key new"));
    }
}
