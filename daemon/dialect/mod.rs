//! The dialects: tool sets that existing agents already use, implemented over the canonical tools.
//!
//! A dialect defines the names, parameters and responses of its tools as its source document does.
//! It accesses no files and starts no processes. It calls canonical tools in sequence, and each of
//! these calls is validated, authorized and recorded like a direct call.
//!
//! A new dialect is a file here and a line in [`DIALECTS`].

mod agentbench;
mod anthropic;
mod claude;
mod cli_agent;
mod definition;
mod dracode;
mod error_terms;
mod invocation;
mod openai;
mod paging;
mod parameter;
mod paths;
mod rauskuclaw;
mod redact;
mod response;

pub(crate) use self::{
    definition::{CanonicalCall, CanonicalTools, Dialect, DialectCallSummary, DialectTool},
    invocation::DialectInvocation,
    parameter::DialectParams,
    response::{DialectFailure, DialectResponse, ResponseData},
};
use crate::daemon::error::Error;

pub(crate) const DIALECTS: [&Dialect; 7] = [
    &agentbench::DIALECT,
    &dracode::DIALECT,
    &claude::DIALECT,
    &cli_agent::DIALECT,
    &rauskuclaw::DIALECT,
    &openai::DIALECT,
    &anthropic::DIALECT,
];

/// Finds a dialect by name.
pub(crate) fn find(name: &str) -> Result<&'static Dialect, Error> {
    DIALECTS.into_iter().find(|dialect| dialect.name == name).ok_or_else(|| {
        let known: Vec<_> = DIALECTS.iter().map(|dialect| dialect.name).collect();
        let text = format!(
            "is {name:?}; it must be empty for the tools of jig.v1, or one of {}",
            known.join(", ")
        );
        Error::invalid_field("dialect", text)
    })
}

pub(crate) fn all() -> impl Iterator<Item = &'static Dialect> {
    DIALECTS.into_iter()
}

/// Whether any dialect has a tool of this name.
pub(crate) fn is_dialect_tool(name: &str) -> bool {
    DIALECTS.iter().any(|dialect| dialect.tools.iter().any(|tool| tool.name == name))
}

#[cfg(test)]
mod tests;
