//! Sends results to those who watch, and decides what of them each may have.

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
    /// Sends a result to those who watch its session. `dialect` is the vocabulary that it is answered in.
    pub(super) fn publish_result(
        &self,
        context: &CallContext,
        dialect: Option<&'static Dialect>,
        response: &InvokeResponse,
    ) {
        if !self.results.is_watched() {
            return;
        }
        let Ok(scene) = self.workspace_context(context) else {
            return;
        };
        let workspace = scene.workspace.name();
        let Some(sender) = self.results.sender(workspace, &context.session) else {
            return;
        };

        let dialect = self.dialect_of_tool(dialect, &response.tool);
        let (content, truncated) = content(response);
        let session = self.state_dir.sessions().get_open(workspace, &context.session);
        let spoken = context.invoke_origin.as_deref().and_then(|call| call.dialect);
        let given = context.invoke_origin.as_deref().map(|call| call.model_call_id.clone());
        let job_id = context.job.as_ref().map(|job| job.id.clone());
        // Each call that a job makes has another.
        let call_id = match job_id {
            Some(_) => String::new(),
            None => context.call_id.clone(),
        };
        let result = CallResult {
            request_id: given.filter(|id| !id.is_empty()).unwrap_or_else(|| call_id.clone()),
            call_id,
            job_id: job_id.unwrap_or_default(),
            tool: response.tool.clone(),
            dialect: spoken.map_or("", |dialect| dialect.name).to_owned(),
            content,
            is_error: response.status() != InvokeStatus::Success,
            truncated,
            absence: ResultAbsence::Unspecified.into(),
        };
        let last_sequence =
            session.map_or(0, |session| *session.subscribe_last_sequence().borrow());
        let published = self.results.hold(last_sequence, dialect, result);
        // Without a receiver, all have gone meanwhile.
        let _sent = sender.send(Arc::new(published));
    }

    /// A result as a watcher may have it: without its content where the watcher may not use the tool. None where the
    /// watcher's key is not for the tool: then it gets no events of the tool either.
    pub(crate) fn result_for(
        &self,
        watcher: &Principal,
        published: &PublishedResult,
    ) -> Option<CallResult> {
        let result = &published.result;
        let own = published.dialect.and_then(|dialect| dialect.own(&result.tool));
        let tool = result.tool.as_str();
        let itself = [tool];
        let mut uses = own.map_or(&itself[..], |own| own.uses).iter();
        if uses.any(|name| watcher.require_tool(name).is_err()) {
            return None;
        }
        let is_open = match self.resolve_tool(watcher, published.dialect, tool) {
            Ok(_) => true,
            // The content only says that there is no such tool.
            Err(error) if error.reason == Reason::UnknownTool => {
                watcher.require_role(AccessRole::Invoke, tool).is_ok()
            }
            Err(_) => false,
        };
        Some(match is_open {
            true => result.clone(),
            false => CallResult {
                content: String::new(),
                truncated: false,
                absence: ResultAbsence::Forbidden.into(),
                ..result.clone()
            },
        })
    }
}

/// What a call has answered to its model, or its beginning and its end; and whether that leaves something out.
fn content(response: &InvokeResponse) -> (String, bool) {
    let text = &response.text;
    if text.len() <= MAX_CONTENT_BYTES {
        return (text.clone(), response.truncated);
    }
    let rest = match response.stdout_path.as_str() {
        "" => String::new(),
        path => output_hint(path, &response.stderr_path, None),
    };
    let object = response.data.as_ref();
    let object = object.and_then(|_| serde_json::from_str::<Map<String, Value>>(text).ok());
    let short = match object {
        Some(fields) => truncate_object(&fields, MAX_CONTENT_BYTES, &rest)
            .map_or_else(|| text.clone(), |short| Value::Object(short).to_string()),
        None => truncate_text_to_json_bytes(text, MAX_CONTENT_BYTES, &rest),
    };
    (short, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_contents_keep_beginning_and_end_and_stay_json() {
        let long = format!("a{}z", "\u{1}é".repeat(100_000));
        let text = InvokeResponse {
            text: long.clone(),
            stdout_path: "logs/o".to_owned(),
            ..InvokeResponse::default()
        };
        let (short, truncated) = content(&text);
        assert!(truncated && short.len() <= MAX_CONTENT_BYTES);
        assert!(short.starts_with('a') && short.ends_with('z') && short.contains("logs/o"));
        let object = InvokeResponse {
            text: serde_json::json!({"content": long, "size": 1}).to_string(),
            data: Some(prost_types::Struct::default()),
            ..InvokeResponse::default()
        };
        let (short, truncated) = content(&object);
        assert!(truncated && short.len() <= MAX_CONTENT_BYTES);
        let short: Value = serde_json::from_str(&short).unwrap();
        assert_eq!((&short["size"], &short["truncated"]), (&1.into(), &true.into()));
        let short = short["content"].as_str().unwrap();
        assert!(short.starts_with('a') && short.ends_with('z'));
        let few = InvokeResponse { text: "few".to_owned(), ..InvokeResponse::default() };
        assert_eq!(content(&few), ("few".to_owned(), false));
    }
}
