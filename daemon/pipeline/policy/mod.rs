//! What becomes of a call, as the operator wants it:
//!
//! ```text
//! the tool is switched off ─▶ TOOL_DISABLED
//! a rule that denies matches ─▶ POLICY_DENIED
//! the first other rule that matches decides: those made by ApprovalService, newest first, then the file's
//! none does ─▶ the risk of the tool decides
//! ```
//!
//! The decision knows no clock and asks nobody. Rules that are switched off or have ended count for nothing.

pub(crate) mod decision;
pub(crate) mod pattern;
pub(crate) mod request;
pub(crate) mod request_ref;
pub(crate) mod rule;
pub(crate) mod store;
