//! Records of calls in a dialect that were refused before any tool began.

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use super::{Pipeline, context::Incoming, record};
use crate::daemon::{dialect::Dialect, error::Error};

/// A call that was refused.
pub(super) struct Refusal<'a> {
    pub(super) dialect: &'static Dialect,
    /// The tool's name in the dialect.
    pub(super) tool: &'a str,
    /// The parameters that were given, for records.
    pub(super) given: Value,
    pub(super) duration: Duration,
    pub(super) error: &'a Error,
}

impl Pipeline {
    /// Leaves the two records that each call of a dialect has. They are of step 0, as no tool began.
    pub(super) async fn note_refusal(self: &Arc<Self>, incoming: &Incoming, refusal: Refusal<'_>) {
        let Refusal { dialect, tool, given, duration, error } = refusal;
        let Ok(scene) = self.scene(incoming) else {
            return;
        };
        let own = dialect.own(tool);
        let name = own.and_then(|own| own.uses.first().copied()).unwrap_or(tool);
        let mut about = record::about(name, incoming, scene.workspace.name());
        about.insert("dialect".to_owned(), dialect.name.into());
        about.insert("said_as".to_owned(), tool.into());
        let records = record::refused(&about, incoming, given, duration, error);
        for fields in records {
            self.note(incoming, fields).await;
        }
    }
}
