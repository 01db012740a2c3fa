//! The ways in: each door translates between its protocol and the pipeline, and does nothing else.

pub(crate) mod artifacts;
pub(crate) mod info;
pub(crate) mod metadata;
pub(crate) mod processes;
pub(crate) mod status;
pub(crate) mod tools;
pub(crate) mod transfer;
