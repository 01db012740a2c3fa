//! Tests of the contract, on its descriptors.

/// Access to the descriptors.
pub(crate) mod descriptors;
/// Errors that the file tools return, compared with the comments of their RPCs.
mod error_coverage;
/// Buf's lint rules.
mod lint;
/// Options of tools and fields: completeness and consistency.
mod options;
/// Compatibility with released contracts.
mod released;
/// API stability: names, defaults and limits that clients rely on.
mod stability;
