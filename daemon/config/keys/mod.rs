//! The key file: API keys and client certificates, with their roles, rights and limits.
//!
//! The file has digests of keys, never the keys. A key has 256 random bits, so its plain SHA-256
//! reveals nothing about it.
//!
//! ```toml
//! [[keys]]
//! name = "builder"
//! role = "invoke"
//! sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
//! certificates = ["uri:spiffe://example.org/builder"] # beside sha256, or in its place
//! workspaces = ["app"]         # default: all
//! create_workspaces = false    # true: it sees those that it creates, and no others by default
//! tools = ["read_file", "run"] # default: all
//! calls_per_second = 20        # default: no limit
//! burst = 40                   # default: calls_per_second
//! concurrent_calls = 8         # default: the limit of the daemon
//! ```

mod credentials;
mod edit;
mod file;
mod secret;

pub(crate) use self::{
    edit::{KeyFileEditError, add, add_entry, list, revoke},
    file::{AccessRole, ApiKey, KeyFile, KeyLimits, RateLimit},
    secret::{KeyDigest, redacted_name},
};
