//! Publishes results to the watchers of a session, limited to what each watcher may see.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{
    Pipeline,
    access::principal::Principal,
    context::CallContext,
    envelope::{output_hint, truncate_object, truncate_text_to_json_bytes},
    results::{MAX_CONTENT_BYTES, PublishedResult},
};
use crate::{
    api::v1::{CallResult, InvokeResponse, InvokeStatus, ResultAbsence},
    daemon::{config::keys::AccessRole, dialect::Dialect, error::Reason},
};

impl Pipeline {
    /// Sends a result to the watchers of its session. `dialect` is the dialect of the response.
    pub(super) fn publish_result(
        &self,
        context: &CallContext,
        dialect: Option<&'static Dialect>,
        response: &InvokeResponse,
    ) {
        if !self.results.is_watched() {
            return;
        }

        let Ok(workspace_context) = self.resolve_workspace(context) else {
            return;
        };
        let workspace = workspace_context.workspace.name();
        let Some(sender) = self.results.sender(workspace, &context.session) else {
            return;
        };

        // The watchers may be those of a workspace that has the name now.
        if workspace_context.is_deleted() {
            return;
        }

        let dialect = self.dialect_of_tool(dialect, &response.tool);
        let (content, truncated) = truncated_content(response);
        let session = self.state_dir.sessions().get_open(workspace, &context.session);
        let origin = context.invoke_origin.as_deref();
        let callers_dialect = origin.and_then(|origin| origin.dialect);
        let model_call_id = origin.map(|origin| origin.model_call_id.clone());
        let job_id = context.job.as_ref().map(|job| job.id.clone());

        // A job has no call id of its own: each of its calls has another one.
        let call_id = if job_id.is_some() { String::new() } else { context.call_id.clone() };
        let result = CallResult {
            request_id: model_call_id
                .filter(|id| !id.is_empty())
                .unwrap_or_else(|| call_id.clone()),
            call_id,
            job_id: job_id.unwrap_or_default(),
            tool: response.tool.clone(),
            dialect: callers_dialect.map_or("", |dialect| dialect.name).to_owned(),
            content,
            is_error: response.status() != InvokeStatus::Success,
            truncated,
            absence: ResultAbsence::Unspecified.into(),
        };

        let last_sequence =
            session.map_or(0, |session| *session.subscribe_last_sequence().borrow());
        let published = self.results.hold(last_sequence, dialect, result);

        // Sending fails if all watchers have gone.
        let _sent = sender.send(Arc::new(published));
    }

    /// Returns a result as `watcher` may see it: without content if it may not call the tool.
    ///
    /// Returns `None` if the watcher's key does not allow the tool. It then gets no events of the
    /// tool either.
    pub(crate) fn result_for(
        &self,
        watcher: &Principal,
        published: &PublishedResult,
    ) -> Option<CallResult> {
        let result = &published.result;
        let tool = result.tool.as_str();
        let dialect_tool = published.dialect.and_then(|dialect| dialect.own(tool));
        let only_itself = [tool];
        let used_tools = dialect_tool.map_or(&only_itself[..], |tool| tool.uses);
        if used_tools.iter().any(|name| watcher.require_tool(name).is_err()) {
            return None;
        }

        let may_call = match self.resolve_tool(watcher, published.dialect, tool) {
            Ok(_) => true,
            // The content says only that the tool is unknown.
            Err(error) if error.reason == Reason::UnknownTool => {
                watcher.require_role(AccessRole::Invoke, tool).is_ok()
            }
            Err(_) => false,
        };
        if may_call {
            return Some(result.clone());
        }
        Some(CallResult {
            content: String::new(),
            truncated: false,
            absence: ResultAbsence::Forbidden.into(),
            ..result.clone()
        })
    }
}

/// Returns the text for the model, truncated to `MAX_CONTENT_BYTES`, and whether it is truncated.
fn truncated_content(response: &InvokeResponse) -> (String, bool) {
    let text = &response.text;
    if text.len() <= MAX_CONTENT_BYTES {
        return (text.clone(), response.truncated);
    }

    let rest_hint = match response.stdout_path.as_str() {
        "" => String::new(),
        path => output_hint(path, &response.stderr_path, None),
    };
    let object =
        response.data.as_ref().and_then(|_| serde_json::from_str::<Map<String, Value>>(text).ok());
    let truncated = match object {
        Some(fields) => truncate_object(&fields, MAX_CONTENT_BYTES, &rest_hint)
            .map_or_else(|| text.clone(), |object| Value::Object(object).to_string()),
        None => truncate_text_to_json_bytes(text, MAX_CONTENT_BYTES, &rest_hint),
    };
    (truncated, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_content_keeps_its_ends_and_stays_json() {
        let long = format!("a{}z", "\u{1}é".repeat(100_000));
        let text = InvokeResponse {
            text: long.clone(),
            stdout_path: "logs/o".to_owned(),
            ..InvokeResponse::default()
        };
        let (short, truncated) = truncated_content(&text);
        assert!(truncated && short.len() <= MAX_CONTENT_BYTES);
        assert!(short.starts_with('a') && short.ends_with('z') && short.contains("logs/o"));

        let object = InvokeResponse {
            text: serde_json::json!({"content": long, "size": 1}).to_string(),
            data: Some(prost_types::Struct::default()),
            ..InvokeResponse::default()
        };
        let (short, truncated) = truncated_content(&object);
        assert!(truncated && short.len() <= MAX_CONTENT_BYTES);
        let short: Value = serde_json::from_str(&short).unwrap();
        assert_eq!((&short["size"], &short["truncated"]), (&1.into(), &true.into()));
        let short = short["content"].as_str().unwrap();
        assert!(short.starts_with('a') && short.ends_with('z'));

        let few = InvokeResponse { text: "few".to_owned(), ..InvokeResponse::default() };
        assert_eq!(truncated_content(&few), ("few".to_owned(), false));
    }
}
