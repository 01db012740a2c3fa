//! Records of calls in a dialect that were rejected before a tool started.

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use super::{Pipeline, context::CallContext, records};
use crate::daemon::{dialect::Dialect, error::Error};

/// A rejected call.
pub(super) struct DialectRejection<'a> {
    pub(super) dialect: &'static Dialect,
    /// The tool's name in the dialect.
    pub(super) tool: &'a str,
    /// The parameters as a record shows them, redacted.
    pub(super) record_params: Value,
    pub(super) duration: Duration,
    pub(super) error: &'a Error,
}

impl Pipeline {
    /// Writes both records of a rejected call, at step 0 because no tool started.
    pub(super) async fn record_dialect_rejection(
        self: &Arc<Self>,
        context: &CallContext,
        rejection: DialectRejection<'_>,
    ) {
        let DialectRejection { dialect, tool, record_params, duration, error } = rejection;
        let Ok(workspace_context) = self.resolve_workspace(context) else {
            return;
        };

        let own = dialect.own(tool);
        let name = own.and_then(|own| own.uses.first().copied()).unwrap_or(tool);
        let mut common_fields =
            records::common_record_fields(name, context, workspace_context.workspace.name());
        common_fields.insert("dialect".to_owned(), dialect.name.into());
        common_fields.insert("called_name".to_owned(), tool.into());
        let records =
            records::rejected_records(&common_fields, context, record_params, duration, error);

        for fields in records {
            self.append_record(context, fields).await;
        }
    }
}
