//! `fetch_url`: fetches a page or a file from the web.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::timeout_at;
use url::Url;

use super::{Tool, ToolContext, ToolOutput, WorkspaceContext, response_deadline};
use crate::{
    api::v1,
    daemon::{
        catalog::CanonicalText,
        error::{Error, Reason, Violation},
        fetch::{ContentFormat, FetchResult, target},
        workspace::CancelToken,
    },
};

/// How long a fetch holds the start permit of its call. After that it waits for the network.
const FETCH_START_PERMIT_HOLD: Duration = Duration::from_millis(3);

#[derive(Debug)]
pub(crate) struct FetchUrl;

/// The validated request.
#[derive(Debug)]
pub(crate) struct Params {
    /// The URL as given.
    original_url: String,
    url: Url,
    timeout: Option<Duration>,
    format: ContentFormat,
    max_bytes: usize,
}

impl Tool for FetchUrl {
    const NAME: &'static str = "fetch_url";
    const ENFORCES_OWN_TIMEOUT: bool = true;
    const START_PERMIT_HOLD: Duration = FETCH_START_PERMIT_HOLD;
    type Request = v1::FetchUrlRequest;
    type Response = v1::FetchUrlResponse;
    type Params = Params;

    fn validate(
        request: Self::Request,
        _: &WorkspaceContext,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Params>, Error> {
        let format = match request.format() {
            v1::FetchFormat::Unspecified | v1::FetchFormat::Raw => ContentFormat::Raw,
            v1::FetchFormat::Text => ContentFormat::Text,
            v1::FetchFormat::Markdown => ContentFormat::Markdown,
        };
        let timeout = request.timeout_sec.map(u64::from).map(Duration::from_secs);
        let max_bytes = usize::try_from(request.max_bytes()).map_err(Error::internal)?;

        if violations.iter().any(|violation| violation.field == "url") {
            return Ok(None);
        }

        match target::parse_url(&request.url) {
            Ok(url) => {
                Ok(Some(Params { original_url: request.url, url, timeout, format, max_bytes }))
            }
            Err(problem) => {
                violations.push(Violation::new("url", problem));
                Ok(None)
            }
        }
    }

    fn canonical_text(params: &Params, _: &WorkspaceContext) -> Option<CanonicalText> {
        let original = params.original_url.to_ascii_lowercase();
        (params.url.as_str() != params.original_url).then(|| CanonicalText {
            field: "url",
            text: params.url.to_string(),
            // The parser removes these components from paths.
            has_parent_component: original.contains("..") || original.contains("%2e"),
        })
    }

    async fn execute(
        params: Params,
        context: ToolContext,
    ) -> Result<ToolOutput<v1::FetchUrlResponse>, Error> {
        let Some(fetcher) = &context.workspace_context.fetcher else {
            let text =
                "the operator allows no hosts to be fetched: use another tool, or ask the operator";
            return Err(Error::new(Reason::ToolDisabled, text));
        };
        let timeout = params.timeout.unwrap_or(context.default_timeout);
        let soft_deadline = response_deadline(Instant::now(), timeout, context.deadline);

        let permit =
            context.acquire_permit("fetches", &fetcher.limiter, Some(soft_deadline)).await?;
        // A name resolution cannot be cancelled, so it holds the permits until it ends.
        let permits = (Arc::new(permit), Arc::clone(&context.permit));
        let fetch = fetcher.inner.fetch(&params.url, params.format, params.max_bytes, permits);
        tokio::select! {
            result = timeout_at(soft_deadline.into(), fetch) => match result {
                Ok(result) => fetch_output(result?),
                Err(_) => Err(timeout_error(&params.url, timeout)),
            },
            () = context.cancel.abandoned.cancelled() => Err(CancelToken::timeout_error()),
        }
    }
}

fn timeout_error(url: &Url, timeout: Duration) -> Error {
    let text = format!(
        "{} did not respond completely within {} s, or within the deadline of the call: raise timeout_sec (at most 60), or retry later",
        url.origin().ascii_serialization(),
        timeout.as_secs()
    );
    Error::new(Reason::Timeout, text)
}

fn fetch_output(result: FetchResult) -> Result<ToolOutput<v1::FetchUrlResponse>, Error> {
    let FetchResult { url, status, content_type, body_bytes, content, truncated } = result;
    let mut output = ToolOutput::new(v1::FetchUrlResponse {
        final_url: url.into(),
        status_code: status.into(),
        content_type,
        content_length: u32::try_from(body_bytes).map_err(Error::internal)?,
        content,
        truncated,
    });

    output.record_fields.insert("status_code".to_owned(), status.into());
    output.record_fields.insert("content_length".to_owned(), body_bytes.into());
    Ok(output)
}
