//! The rules of the contract, checked on its descriptors.

/// The descriptors.
mod descriptors;
/// What the tools answer, against what their comments name.
mod error_coverage;
/// The shape of names and comments.
mod lint;
/// Options of tools and fields.
mod options;
/// What clients were promised.
mod promises;
/// What released contracts have.
mod released;
