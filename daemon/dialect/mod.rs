//! The tool vocabularies that agents already speak, each over the canonical tools. A dialect says what its
//! tools are called, what they take, and what they answer, as its document does. It touches no files and
//! starts no processes: it calls canonical tools, one after the other, which are checked, permitted, and
//! recorded as though they had been called by their own names.
//!
//! A further one is a file here, and a line in [`ALL`].

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
    definition::{
        CanonicalCall, CanonicalTools, Dialect, DialectCallSummary, DialectFuture, DialectTool,
    },
    invocation::DialectInvocation,
    parameter::DialectParams,
    response::{DialectFailure, DialectResponse, ResponseData},
};
use crate::daemon::error::Error;

/// All of them.
const DIALECTS: [&Dialect; 7] = [
    &agentbench::DIALECT,
    &dracode::DIALECT,
    &claude::DIALECT,
    &cli_agent::DIALECT,
    &rauskuclaw::DIALECT,
    &openai::DIALECT,
    &anthropic::DIALECT,
];

/// The dialect of this name.
pub(crate) fn find(name: &str) -> Result<&'static Dialect, Error> {
    DIALECTS.into_iter()
        .find(|dialect| dialect.name == name)
        .ok_or_else(|| {
            let known: Vec<_> = DIALECTS.iter().map(|dialect| dialect.name).collect();
            let text = format!(
                "there is no dialect {name:?}; leave it empty for the tools of this contract, or use one of {}",
                known.join(", ")
            );
            Error::invalid_field("dialect", text)
        })
}

/// All of them.
pub(crate) fn all() -> impl Iterator<Item = &'static Dialect> {
    DIALECTS.into_iter()
}

/// Whether there is a tool of this name in any of them.
pub(crate) fn is_dialect_tool(name: &str) -> bool {
    DIALECTS.iter().any(|dialect| dialect.tools.iter().any(|tool| tool.name == name))
}

#[cfg(test)]
mod tests;
