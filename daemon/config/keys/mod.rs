//! The key file: who may call, as what, and how much. It holds digests of keys, never keys: a key has
//! 256 random bits, so that its plain SHA-256 tells nothing about it.
//!
//! ```toml
//! [[keys]]
//! name = "builder"
//! role = "invoke"
//! sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
//! workspaces = ["app"]        # without: all
//! tools = ["read_file", "run"] # without: all
//! calls_per_second = 20       # without: no limit
//! burst = 40                  # without: as many as in a second
//! concurrent_calls = 8        # without: as many as the daemon takes
//! ```

mod edit;
mod file;
mod secret;
mod trusted_path;

pub(crate) use self::{
    edit::{KeyFileEditError, add, list, revoke},
    file::{AccessRole, ApiKey, KeyFile, KeyLimits, RateLimit},
    secret::{KeyDigest, redacted_name},
};
