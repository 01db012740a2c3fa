//! The operator's policy: allow, deny or ask, for each call.
//!
//! ```text
//! the tool is disabled ─▶ TOOL_DISABLED
//! a deny rule matches  ─▶ POLICY_DENIED
//! otherwise the first matching rule decides: rules of ApprovalService, newest first, then the
//! rules of the configuration file
//! no rule matches      ─▶ the risk of the tool decides
//! ```
//!
//! The decision is a pure function: it reads no clock and asks no one. Disabled and expired rules
//! have no effect.

pub(crate) mod decision;
pub(crate) mod pattern;
pub(crate) mod request;
pub(crate) mod rule;
pub(crate) mod store;
