//! Calls that are repeated, with the same request id, until the daemon answers.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use jig::api::v1::ReadFileRequest;
use jig::client::{CallError, Client, Code, Options};

use super::tally::Tally;

/// Time after which a call that the daemon does not answer is given up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(180);
/// Delay before a repetition, unless the daemon names another.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Longest delay before a repetition.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);

/// Address, options and tally of the calls of a load.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) address: Arc<str>,
    pub(super) options: Options,
    pub(super) tally: Arc<Tally>,
}

/// Why a call has no result.
#[derive(Debug)]
pub(super) enum CallFailure {
    /// The daemon answered with an error.
    Answered(CallError),
    /// The daemon did not answer in time.
    GaveUp,
}

impl CallFailure {
    pub(super) fn reason(&self) -> &str {
        match self {
            Self::Answered(error) => error.name(),
            Self::GaveUp => "GAVE_UP",
        }
    }
}

impl Caller {
    /// Makes a call. Repeats it on a new connection while nothing was done, or the answer was lost.
    /// A call that changes something needs a request id.
    pub(super) async fn call<T, Calling>(
        &self,
        kind: &'static str,
        request_id: Option<&str>,
        call: impl Fn(Client) -> Calling,
    ) -> Result<T, CallFailure>
    where
        Calling: Future<Output = Result<T, CallError>>,
    {
        let start = Instant::now();
        while start.elapsed() < GIVE_UP_AFTER {
            let error = match self.connect(request_id).await {
                Ok(client) => match call(client).await {
                    Ok(answer) => {
                        self.tally.completed(kind, start.elapsed());
                        return Ok(answer);
                    }
                    Err(error) => error,
                },
                Err(()) => {
                    self.tally.failed(kind, "CONNECT");
                    tokio::time::sleep(RETRY_DELAY).await;
                    continue;
                }
            };

            self.tally.failed(kind, error.name());
            if !can_repeat(&error) {
                return Err(CallFailure::Answered(error));
            }
            let delay = error.retry_after.unwrap_or(RETRY_DELAY);
            tokio::time::sleep(delay.min(MAX_RETRY_DELAY)).await;
        }
        self.tally.failed(kind, CallFailure::GaveUp.reason());
        Err(CallFailure::GaveUp)
    }

    /// Connects, as an agent does that starts `jig` for each call.
    pub(super) async fn connect(&self, request_id: Option<&str>) -> Result<Client, ()> {
        let mut options = self.options.clone();
        options.request_id = request_id.map(str::to_owned);
        Client::connect(&self.address, options).await.map_err(drop)
    }
}

/// Returns whether the same call can have another result: it was not admitted, or the connection
/// broke. An error without a reason is not from the daemon.
fn can_repeat(error: &CallError) -> bool {
    let is_broken = error.reason.is_none()
        && matches!(
            error.code,
            Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled
        );
    is_broken || matches!(error.code, Code::Unavailable | Code::ResourceExhausted)
}

/// Reads a file by the tool.
pub(super) async fn read(caller: &Caller, path: &str) -> Result<String, CallFailure> {
    let answer = caller
        .call("read_file", None, |client| {
            let request = ReadFileRequest { path: path.to_owned(), ..ReadFileRequest::default() };
            async move { client.read_file(request).await }
        })
        .await;
    answer.map(|response| response.content)
}

/// The output of `seq 1 COUNT`.
pub(super) fn numbers(count: u64) -> String {
    let mut text = String::new();
    for number in 1..=count {
        text += &number.to_string();
        text.push('\n');
    }
    text
}
