//! Whom to call: the daemon at the address, or one of our own for this one call; and until when: a
//! signal cancels the call.

use std::future::Future;

use jig::client::Client;
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{SignalKind, signal},
};

use crate::{exit, failure::Failure, global::Global, local::Local};

/// Calls the daemon at the address, or where none is given, one that holds the current directory
/// and lives as long as the call.
pub(crate) fn call<T, Call, Calling>(global: &Global, call: Call) -> Result<T, Failure>
where
    T: Send + 'static,
    Call: FnOnce(Client) -> Calling + Send + 'static,
    Calling: Future<Output = Result<T, Failure>> + Send + 'static,
{
    match global.address() {
        Some(address) => runtime()?.block_on(until_signal(connected(address, global, call))),
        None => embedded(global, call),
    }
}

/// Calls the daemon at the address, which must be given. Signals end the process as they always do:
/// for whoever blocks on writing what comes.
pub(crate) fn call_at<T, Call, Calling>(
    address: &str,
    global: &Global,
    call: Call,
) -> Result<T, Failure>
where
    Call: FnOnce(Client) -> Calling,
    Calling: Future<Output = Result<T, Failure>>,
{
    runtime()?.block_on(connected(address, global, call))
}

/// A runtime of one thread: there is one call to wait for.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Local::new("the call cannot be started", &error).into())
}

async fn connected<T, Call, Calling>(
    address: &str,
    global: &Global,
    call: Call,
) -> Result<T, Failure>
where
    Call: FnOnce(Client) -> Calling,
    Calling: Future<Output = Result<T, Failure>>,
{
    call(Client::connect(address, global.options()).await?).await
}

/// Waits for the call, or drops and thereby cancels it when a signal asks us to end.
async fn until_signal<T>(call: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let fails = |error| Local::new("signals cannot be listened for", &error);
    let listen = |kind| signal(kind).map_err(fails);
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    tokio::select! {
        biased;
        result = call => result,
        _ = interrupt.recv() => Err(Failure::Interrupted(exit::CANCELLED)),
        _ = terminate.recv() => Err(Failure::Interrupted(128 + 15)),
        _ = hangup.recv() => Err(Failure::Interrupted(128 + 1)),
    }
}

#[cfg(feature = "daemon")]
fn embedded<T, Call, Calling>(global: &Global, call: Call) -> Result<T, Failure>
where
    T: Send + 'static,
    Call: FnOnce(Client) -> Calling + Send + 'static,
    Calling: Future<Output = Result<T, Failure>> + Send + 'static,
{
    let fails = |error| Local::new("the current directory cannot be found", &error);
    let here = std::env::current_dir().map_err(fails)?;
    let global = global.clone();
    jig::daemon::with_embedded(here, |address: String| async move {
        until_signal(connected(&address, &global, call)).await
    })
    .map_err(Failure::Embedded)?
}

#[cfg(not(feature = "daemon"))]
fn embedded<T, Call, Calling>(_: &Global, _: Call) -> Result<T, Failure>
where
    Call: FnOnce(Client) -> Calling,
{
    Err(Failure::Usage(
        "this jig was built without the daemon: name one with --address or JIG_ADDRESS".to_owned(),
    ))
}
