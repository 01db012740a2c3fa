//! Reads and checks the key file. Error messages never contain a possible key.

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
    credentials::check_credentials,
    secret::{KEY_PREFIX, KeyDigest, redacted_name},
};
use crate::daemon::config::{
    client_certificate::CertificateName,
    trusted_path::{GROUP_OTHER_WRITE, open, open_trusted},
};

const MAX_KEYS: usize = 4096;
const MAX_KEY_NAME_BYTES: usize = 64;
/// What to do if the file cannot be opened.
const CREATE_KEY_REMEDY: &str = "create a key with `jig key new --keys FILE`";
/// Largest value of `calls_per_second`, `burst` and `concurrent_calls`.
const MAX_CALL_LIMIT: u32 = 1_000_000;
/// The fields of a `[[keys]]` table.
const KEY_FIELDS: [&str; 12] = [
    "name",
    "role",
    "sha256",
    "certificates",
    "workspaces",
    "create_workspaces",
    "tools",
    "calls_per_second",
    "burst",
    "concurrent_calls",
    "expires",
    "created",
];

/// Role of a caller. Each role includes the roles before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AccessRole {
    /// Read the catalog, the state of the daemon, and the records of sessions.
    Read,
    /// Call tools.
    Invoke,
    /// Everything, including decisions about the calls of others.
    Admin,
}

/// A checked key file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyFile {
    pub(crate) path: PathBuf,
    /// In the order of the file.
    pub(crate) keys: Vec<ApiKey>,
}

/// An entry of the key file: a caller, without the secret of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiKey {
    /// Name of the caller in records.
    pub(crate) name: String,
    pub(crate) role: AccessRole,
    /// Digest of the key. `None`: only certificates authenticate the caller.
    pub(crate) digest: Option<KeyDigest>,
    /// Names of the client certificates that authenticate the caller.
    pub(crate) certificates: BTreeSet<CertificateName>,
    /// Workspaces that the key allows, beside those that it creates. `None`: all.
    pub(crate) workspaces: Option<BTreeSet<String>>,
    /// Whether the key may create workspaces. Administrators may in any case.
    pub(crate) create_workspaces: bool,
    /// Tools that the key allows. `None`: all.
    pub(crate) tools: Option<BTreeSet<String>>,
    pub(crate) limits: KeyLimits,
    pub(crate) expires: Option<SystemTime>,
}

/// Limits of one caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct KeyLimits {
    /// Rate of calls. `None`: no limit.
    pub(crate) rate: Option<RateLimit>,
    /// Running calls. `None`: the limit of the daemon.
    pub(crate) concurrent_calls: Option<u32>,
}

/// A rate limit with a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateLimit {
    /// Calls per second on average.
    pub(crate) per_second: u32,
    /// Calls at once after a pause.
    pub(crate) burst: u32,
}

/// The key file as it is written.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) certificates: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) workspaces: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) create_workspaces: bool,
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

impl ApiKey {
    /// Identifies all credentials of the caller. A caller with others may be another person.
    pub(crate) fn credentials_digest(&self) -> KeyDigest {
        KeyDigest::of_credentials(self.digest, self.certificates.iter())
    }
}

impl KeyFile {
    /// Reads the file at `path`, which only root and the daemon's own user may be able to change.
    ///
    /// # Errors
    ///
    /// Returns all problems. Each names the key and the field.
    pub(crate) fn read(path: &Path) -> Result<Self, Vec<String>> {
        let explain = |problem| format!("--keys {}: {problem}", path.display());
        let content = open_trusted(path)
            .map_err(|error| error.explain(CREATE_KEY_REMEDY))
            .and_then(RawKeyFile::from_file)
            .map_err(|problem| vec![explain(problem)])?;

        let mut problems = Vec::new();
        let keys = check_keys(content, &mut problems);
        if problems.is_empty() {
            Ok(Self { path: path.to_owned(), keys })
        } else {
            Err(problems.into_iter().map(explain).collect())
        }
    }
}

impl RawKeyFile {
    /// Reads the file at `path`, without checks of the path.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        Self::from_file(open(path).map_err(|error| error.explain(CREATE_KEY_REMEDY))?)
    }

    fn from_file(file: File) -> Result<Self, String> {
        let metadata = file.metadata().map_err(|error| error.to_string())?;
        if metadata.mode() & GROUP_OTHER_WRITE != 0 {
            return Err(format!(
                "users other than its owner can write to it (mode {:04o}), and so add keys: chmod go-w it",
                metadata.mode() & 0o7777
            ));
        }
        let text = io::read_to_string(file).map_err(|error| error.to_string())?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self, String> {
        // The message of the parser can quote a key.
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let start = error.span().map_or(0, |span| span.start);
            let before = text.get(..start).unwrap_or_default();
            let line = before.matches('\n').count();
            let content = text.lines().nth(line).unwrap_or_default();
            format!("line {}: {}", line + 1, explain_parse_error(error.message(), content))
        })
    }
}

/// Returns the problem of a line without any of its content, except known field names.
fn explain_parse_error(message: &str, line: &str) -> String {
    let known = KEY_FIELDS.join(", ");
    if message.starts_with("missing field") {
        let missing = |field: &&&str| message.contains(&format!("`{field}`"));
        let field = KEY_FIELDS.iter().find(missing).copied().unwrap_or("keys");
        return format!("missing field {field}");
    }
    if message.starts_with("unknown field") {
        return format!("unknown field: a [[keys]] table has {known}");
    }

    let name = line.split('=').next().unwrap_or_default().trim();
    let field = KEY_FIELDS.iter().find(|field| **field == name);
    let is_value = message.starts_with("unknown variant") || message.starts_with("invalid");
    match field {
        Some(&"role") if is_value => "role must be \"read\", \"invoke\" or \"admin\"".to_owned(),
        Some(field) => format!("{field} has an invalid value, or is not valid TOML"),
        None => format!("not valid TOML, or not a [[keys]] table with {known}"),
    }
}

/// Checks the tables of a key file.
pub(super) fn check_keys(content: RawKeyFile, problems: &mut Vec<String>) -> Vec<ApiKey> {
    if content.keys.len() > MAX_KEYS {
        problems.push(format!("has {} keys; at most {MAX_KEYS} are allowed", content.keys.len()));
    }

    let (mut names, mut digests, mut certificates) =
        (HashSet::new(), HashSet::new(), HashSet::new());
    let mut keys = Vec::new();
    for (index, table) in content.keys.into_iter().enumerate() {
        let name = if is_key_name(&table.name) {
            redacted_name(&table.name)
        } else {
            // The text could be a misplaced key.
            format!("number {}", index + 1)
        };
        let mut report = |text: String| problems.push(format!("key {name}: {text}"));

        if !is_key_name(&table.name) {
            report(NAME_RULE.to_owned());
        }
        if !names.insert(table.name.clone()) {
            report("two keys have this name".to_owned());
        }
        let key = check_key(table, &mut report);
        if key.digest.is_some_and(|digest| !digests.insert(digest)) {
            report("two entries are for the same key".to_owned());
        }
        if key.certificates.iter().any(|name| !certificates.insert(name.clone())) {
            report("two entries are for the same certificate".to_owned());
        }
        keys.push(key);
    }
    keys
}

/// Checks the fields of a table, except its name.
fn check_key(table: KeyTable, report: &mut impl FnMut(String)) -> ApiKey {
    let certificates = table.certificates.as_deref();
    let (digest, certificates) = check_credentials(table.sha256.as_deref(), certificates, report);
    for (field, number) in [
        ("calls_per_second", table.calls_per_second),
        ("burst", table.burst),
        ("concurrent_calls", table.concurrent_calls),
    ] {
        if number.is_some_and(|number| !(1..=MAX_CALL_LIMIT).contains(&number)) {
            report(format!("{field} must be from 1 to {MAX_CALL_LIMIT}"));
        }
    }
    if table.burst.is_some() && table.calls_per_second.is_none() {
        report("burst requires calls_per_second".to_owned());
    }
    for (field, list) in [("workspaces", &table.workspaces), ("tools", &table.tools)] {
        if list.as_ref().is_some_and(Vec::is_empty) {
            report(format!("{field} is empty: name at least one, or remove it for all"));
        }
    }
    let expires = table.expires.as_deref().map(parse_expiry);
    if let Some(Err(problem)) = &expires {
        report(problem.clone());
    }

    let (role, create_workspaces) = (table.role, table.create_workspaces);
    let sees_own_only = create_workspaces && role < AccessRole::Admin;
    if create_workspaces && role < AccessRole::Invoke {
        report("create_workspaces needs the role invoke".to_owned());
    }

    ApiKey {
        name: table.name,
        role,
        digest,
        certificates,
        workspaces: table
            .workspaces
            .map(|names| names.into_iter().collect())
            .or_else(|| sees_own_only.then(BTreeSet::new)),
        create_workspaces,
        tools: table.tools.map(|names| names.into_iter().collect()),
        limits: KeyLimits {
            rate: table.calls_per_second.map(|per_second| RateLimit {
                per_second,
                burst: table.burst.unwrap_or(per_second),
            }),
            concurrent_calls: table.concurrent_calls,
        },
        expires: expires.and_then(Result::ok),
    }
}

const NAME_RULE: &str = "a name has 1 to 64 letters, digits, dots, underscores and hyphens, and does not contain jig_, the prefix of keys";

fn is_key_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let could_be_a_key = text.contains(KEY_PREFIX);
    (1..=MAX_KEY_NAME_BYTES).contains(&text.len()) && text.bytes().all(allowed) && !could_be_a_key
}

fn parse_expiry(text: &str) -> Result<SystemTime, String> {
    let problem = || "expires: give a time such as \"2027-01-31T00:00:00Z\"".to_owned();
    let time: prost_types::Timestamp = text.parse().map_err(|_| problem())?;
    SystemTime::try_from(time).map_err(|_| problem())
}

impl AccessRole {
    /// Returns the name in the key file.
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
            Ok(content) => drop(check_keys(content, &mut problems)),
            Err(problem) => problems.push(problem),
        }
        problems
    }

    fn key(more: &str) -> String {
        let digest = "0".repeat(64);
        format!("[[keys]]\nname = \"a\"\nrole = \"invoke\"\nsha256 = \"{digest}\"\n{more}\n")
    }

    #[test]
    fn every_problem_of_every_key_is_reported() {
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
            "key number 2: burst requires",
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
    fn a_problem_never_contains_a_possible_key() {
        let fields = KEY_FIELDS.into_iter().flat_map(|field| {
            let others = key("").lines().map(str::to_owned).collect::<Vec<_>>();
            let others = others.into_iter().filter(|line| !line.starts_with(&format!("{field} =")));
            let others: Vec<_> = others.collect();
            ["\"jig_secret\"", "[\"jig_secret\"]", "jig_secret", "\"jig_secret"]
                .map(|value| (field, format!("{}\n{field} = {value}\n", others.join("\n"))))
        });
        // These fields accept any text.
        let may_be_valid = ["workspaces", "tools", "created"];
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
            assert!(!found.is_empty() || may_be_valid.contains(&field), "{bad}");
            assert!(!found.concat().contains("secret"), "{bad}: {found:?}");
        }
        // The problem names the line.
        let found = problems("[[keys]]\nname = \"a\"\nburst = \"jig_secret\"").concat();
        assert!(found.contains("line 3: burst"), "{found}");
        let found = problems("[[keys]]\nname = \"a\"\nrole = \"jig_secret\"").concat();
        assert!(found.contains("line 3: role must be"), "{found}");
    }

    #[test]
    fn a_key_has_a_digest_or_certificates_that_no_other_key_has() {
        let entry = |name: &str, credentials: &str| {
            format!("[[keys]]\nname = {name:?}\nrole = \"invoke\"\n{credentials}\n")
        };
        let certificate = "certificates = [\"uri:spiffe://a/b\", \"dns:b.example\"]";
        let digest = format!("sha256 = {:?}", "0".repeat(64));
        assert_eq!(problems(&entry("a", certificate)), [""; 0]);
        assert_eq!(problems(&entry("a", &format!("{digest}\n{certificate}"))), [""; 0]);

        let other = entry("b", "certificates = [\"dns:B.example.\"]");
        for (text, expected) in [
            (entry("a", ""), "give sha256"),
            (entry("a", "certificates = []"), "certificates is empty"),
            (entry("a", "certificates = [\"cn:x\"]"), "certificates[0]: give uri:"),
            (entry("a", certificate) + &other, "same certificate"),
        ] {
            let found = problems(&text);
            assert!(found.len() == 1 && found[0].contains(expected), "{text}: {found:?}");
        }
    }

    #[test]
    fn credentials_have_a_digest_that_depends_on_all_of_them() {
        let digest = |credentials: &str| {
            let text = format!("[[keys]]\nname = \"a\"\nrole = \"invoke\"\n{credentials}\n");
            let keys = check_keys(RawKeyFile::parse(&text).unwrap(), &mut Vec::new());
            keys[0].credentials_digest()
        };
        let key = format!("sha256 = {:?}", "1".repeat(64));
        assert_eq!(Some(digest(&key)), KeyDigest::parse(&"1".repeat(64)));
        let certificate = "certificates = [\"dns:a\"]";
        let all = [
            digest(&key),
            digest(certificate),
            digest(&format!("{key}\n{certificate}")),
            digest("certificates = [\"dns:b\"]"),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(!all[..index].contains(one), "{index}");
        }
    }

    #[test]
    fn two_invalid_digests_are_not_reported_as_one_key() {
        let bad =
            |name: &str| format!("[[keys]]\nname = {name:?}\nrole = \"read\"\nsha256 = \"0\"\n");
        let found = problems(&(bad("a") + &bad("b")));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|problem| problem.contains("64")), "{found:?}");
    }

    #[test]
    fn a_file_that_other_users_can_write_is_refused() {
        use std::{fs, os::unix::fs::PermissionsExt as _};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys.toml");
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
        let missing = KeyFile::read(&directory.path().join("none")).unwrap_err();
        assert!(missing.concat().contains("jig key new"));
    }
}
