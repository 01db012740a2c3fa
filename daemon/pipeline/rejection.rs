//! Records of calls in a dialect that were refused before any tool began.

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use super::{Pipeline, context::CallContext, records};
use crate::daemon::{dialect::Dialect, error::Error};

/// A call that was refused.
pub(super) struct DialectRejection<'a> {
    pub(super) dialect: &'static Dialect,
    /// The tool's name in the dialect.
    pub(super) tool: &'a str,
    /// The parameters that were given, for records.
    pub(super) record_params: Value,
    pub(super) duration: Duration,
    pub(super) error: &'a Error,
}

impl Pipeline {
    /// Leaves the two records that each call of a dialect has. They are of step 0, as no tool began.
    pub(super) async fn record_dialect_rejection(
        self: &Arc<Self>,
        context: &CallContext,
        refusal: DialectRejection<'_>,
    ) {
        let DialectRejection { dialect, tool, record_params: given, duration, error } = refusal;
        let Ok(scene) = self.workspace_context(context) else {
            return;
        };
        let own = dialect.own(tool);
        let name = own.and_then(|own| own.uses.first().copied()).unwrap_or(tool);
        let mut about = records::common_record_fields(name, context, scene.workspace.name());
        about.insert("dialect".to_owned(), dialect.name.into());
        about.insert("said_as".to_owned(), tool.into());
        let records = records::rejected_records(&about, context, given, duration, error);
        for fields in records {
            self.append_record(context, fields).await;
        }
    }
}
