//! `fetch_url`: a page or a file from the web.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::timeout_at;
use url::Url;

use super::{Done, FileStop, Scene, Tool, Work, limit};
use crate::{
    api::v1,
    daemon::{
        catalog::Reading,
        error::{Error, Reason, Violation},
        fetch::{Fetched, Form, target},
    },
};

/// How long a fetch keeps the turn of its call: from then on it waits for others.
const TURN: Duration = Duration::from_millis(3);

/// The tool.
#[derive(Debug)]
pub(crate) struct FetchUrl;

/// A request that was checked.
#[derive(Debug)]
pub(crate) struct Params {
    /// The URL as it was given.
    given: String,
    url: Url,
    timeout: Option<Duration>,
    form: Form,
    most: usize,
}

impl Tool for FetchUrl {
    const NAME: &'static str = "fetch_url";
    const LIMITS_ITSELF: bool = true;
    const TURN: Duration = TURN;
    type Request = v1::FetchUrlRequest;
    type Response = v1::FetchUrlResponse;
    type Params = Params;

    fn check(
        request: Self::Request,
        _: &Scene,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Params>, Error> {
        let form = match request.format() {
            v1::FetchFormat::Unspecified | v1::FetchFormat::Raw => Form::Raw,
            v1::FetchFormat::Text => Form::Text,
            v1::FetchFormat::Markdown => Form::Markdown,
        };
        let timeout = request.timeout_sec.map(u64::from).map(Duration::from_secs);
        let most = usize::try_from(request.max_bytes()).map_err(Error::internal)?;
        if violations.iter().any(|violation| violation.field == "url") {
            return Ok(None);
        }
        match target::parse(&request.url) {
            Ok(url) => Ok(Some(Params { given: request.url, url, timeout, form, most })),
            Err(problem) => {
                violations.push(Violation::new("url", problem));
                Ok(None)
            }
        }
    }

    fn reading(params: &Params, _: &Scene) -> Option<Reading> {
        let given = params.given.to_ascii_lowercase();
        (params.url.as_str() != params.given).then(|| Reading {
            field: "url",
            text: params.url.to_string(),
            // The parser takes these out of paths.
            leads_back: given.contains("..") || given.contains("%2e"),
        })
    }

    async fn execute(params: Params, work: Work) -> Result<Done<v1::FetchUrlResponse>, Error> {
        let Some(fetches) = &work.scene.fetches else {
            let text =
                "the operator lets nothing be fetched: use another tool, or ask the operator";
            return Err(Error::new(Reason::ToolDisabled, text));
        };
        let timeout = params.timeout.unwrap_or(work.default_timeout);
        let until = limit(Instant::now(), timeout, work.deadline);
        let place = work.wait_for(&fetches.places, Some(until)).await?;
        // As long as a name is looked up, which nothing ends.
        let hold = (Arc::new(place), Arc::clone(&work.place));
        let fetched = fetches.fetcher.fetch(&params.url, params.form, params.most, hold);
        tokio::select! {
            fetched = timeout_at(until.into(), fetched) => match fetched {
                Ok(fetched) => done(fetched?),
                Err(_) => Err(late(&params.url, timeout)),
            },
            () = work.stop.abandon.cancelled() => Err(FileStop::late()),
        }
    }
}

fn late(url: &Url, timeout: Duration) -> Error {
    let text = format!(
        "{} did not answer all within {} s, or within what time the call has: allow more with timeout_sec (at most 60), or try again later",
        url.origin().ascii_serialization(),
        timeout.as_secs()
    );
    Error::new(Reason::Timeout, text)
}

fn done(fetched: Fetched) -> Result<Done<v1::FetchUrlResponse>, Error> {
    let Fetched { url, status, content_type, bytes, content, is_cut } = fetched;
    let mut done = Done::plain(v1::FetchUrlResponse {
        final_url: url.into(),
        status_code: status.into(),
        content_type,
        content_length: u32::try_from(bytes).map_err(Error::internal)?,
        content,
        truncated: is_cut,
    });
    done.facts.insert("status_code".to_owned(), status.into());
    done.facts.insert("content_length".to_owned(), bytes.into());
    Ok(done)
}
