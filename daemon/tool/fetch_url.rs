//! `fetch_url`: a page or a file from the web.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::timeout_at;
use url::Url;

use super::{FileStop, Tool, ToolContext, ToolOutput, WorkspaceContext, response_deadline};
use crate::{
    api::v1,
    daemon::{
        catalog::CanonicalText,
        error::{Error, Reason, Violation},
        fetch::{ContentFormat, FetchResult, target},
    },
};

/// How long a fetch keeps the turn of its call: from then on it waits for others.
const START_PERMIT_HOLD: Duration = Duration::from_millis(3);

/// The tool.
#[derive(Debug)]
pub(crate) struct FetchUrl;

/// A request that was checked.
#[derive(Debug)]
pub(crate) struct Params {
    /// The URL as it was given.
    original_url: String,
    url: Url,
    timeout: Option<Duration>,
    form: ContentFormat,
    max_bytes: usize,
}

impl Tool for FetchUrl {
    const NAME: &'static str = "fetch_url";
    const ENFORCES_OWN_TIMEOUT: bool = true;
    const START_PERMIT_HOLD: Duration = START_PERMIT_HOLD;
    type Request = v1::FetchUrlRequest;
    type Response = v1::FetchUrlResponse;
    type Params = Params;

    fn validate(
        request: Self::Request,
        _: &WorkspaceContext,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Params>, Error> {
        let form = match request.format() {
            v1::FetchFormat::Unspecified | v1::FetchFormat::Raw => ContentFormat::Raw,
            v1::FetchFormat::Text => ContentFormat::Text,
            v1::FetchFormat::Markdown => ContentFormat::Markdown,
        };
        let timeout = request.timeout_sec.map(u64::from).map(Duration::from_secs);
        let most = usize::try_from(request.max_bytes()).map_err(Error::internal)?;
        if violations.iter().any(|violation| violation.field == "url") {
            return Ok(None);
        }
        match target::parse_url(&request.url) {
            Ok(url) => {
                Ok(Some(Params { original_url: request.url, url, timeout, form, max_bytes: most }))
            }
            Err(problem) => {
                violations.push(Violation::new("url", problem));
                Ok(None)
            }
        }
    }

    fn canonical_text(params: &Params, _: &WorkspaceContext) -> Option<CanonicalText> {
        let given = params.original_url.to_ascii_lowercase();
        (params.url.as_str() != params.original_url).then(|| CanonicalText {
            field: "url",
            text: params.url.to_string(),
            // The parser takes these out of paths.
            has_parent_component: given.contains("..") || given.contains("%2e"),
        })
    }

    async fn execute(
        params: Params,
        context: ToolContext,
    ) -> Result<ToolOutput<v1::FetchUrlResponse>, Error> {
        let Some(fetches) = &context.workspace_context.fetch_limiter else {
            let text =
                "the operator lets nothing be fetched: use another tool, or ask the operator";
            return Err(Error::new(Reason::ToolDisabled, text));
        };
        let timeout = params.timeout.unwrap_or(context.default_timeout);
        let until = response_deadline(Instant::now(), timeout, context.deadline);
        let place = context.acquire_permit(&fetches.limiter, Some(until)).await?;
        // As long as a name is looked up, which nothing ends.
        let hold = (Arc::new(place), Arc::clone(&context.permit));
        let fetched = fetches.fetcher.fetch(&params.url, params.form, params.max_bytes, hold);
        tokio::select! {
            fetched = timeout_at(until.into(), fetched) => match fetched {
                Ok(fetched) => fetch_output(fetched?),
                Err(_) => Err(timeout_error(&params.url, timeout)),
            },
            () = context.cancel.abandoned.cancelled() => Err(FileStop::timeout_error()),
        }
    }
}

fn timeout_error(url: &Url, timeout: Duration) -> Error {
    let text = format!(
        "{} did not answer all within {} s, or within what time the call has: allow more with timeout_sec (at most 60), or try again later",
        url.origin().ascii_serialization(),
        timeout.as_secs()
    );
    Error::new(Reason::Timeout, text)
}

fn fetch_output(fetched: FetchResult) -> Result<ToolOutput<v1::FetchUrlResponse>, Error> {
    let FetchResult { url, status, content_type, body_bytes: bytes, content, truncated: is_cut } =
        fetched;
    let mut done = ToolOutput::new(v1::FetchUrlResponse {
        final_url: url.into(),
        status_code: status.into(),
        content_type,
        content_length: u32::try_from(bytes).map_err(Error::internal)?,
        content,
        truncated: is_cut,
    });
    done.record_fields.insert("status_code".to_owned(), status.into());
    done.record_fields.insert("content_length".to_owned(), bytes.into());
    Ok(done)
}
