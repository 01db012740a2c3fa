//! Changing text: what the tools do to files, without a file. Pure functions.
//!
//! | file | holds |
//! |---|---|
//! | [`diff`] | two texts as a unified diff |
//! | [`edit`] | replacing strings, one edit after the other |
//! | [`nearest`] | what comes near a string that is not there |
//! | [`notebook`] | cells of a Jupyter notebook, read and edited in place |
//! | [`patch`] | unified diffs |
//! | [`v4a`] | patches as OpenAI's models write them |

pub(crate) mod diff;
pub(crate) mod edit;
pub(crate) mod notebook;
pub(crate) mod patch;
mod similar_lines;
pub(crate) mod v4a;
