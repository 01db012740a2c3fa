//! Connects to the daemon and runs a call, with handling of signals.
//!
//! Without an address, it starts a daemon for the call. The first signal cancels the call; signals
//! after the call end the process.

use std::{
    fs,
    future::{Future, pending},
    pin::Pin,
    thread,
};

use jig::client::Client;
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};

use crate::{
    cli_error::CliError,
    exit,
    global::{GlobalArgs, no_daemon_error},
    listener_owner::is_trusted,
    local_error::LocalError,
    output,
};
#[cfg(feature = "daemon")]
use crate::{home, isolation_hint::with_isolation_hint};

/// Signals that ask the process to terminate.
#[derive(Debug)]
pub(crate) struct TerminationSignals {
    interrupt: Signal,
    terminate: Signal,
    quit: Signal,
    /// `None` if SIGHUP was ignored at the start, as nohup(1) does, to outlive the terminal.
    hangup: Option<Signal>,
}

/// A connection in progress.
pub(crate) type PendingClient = Pin<Box<dyn Future<Output = Result<Client, CliError>> + Send>>;

/// Result of a call, and the signals that it listened for.
type CallOutcome<T> = (Result<T, CliError>, TerminationSignals);

/// Runs a call on the daemon at the address, or on one that is started for this call.
///
/// That daemon serves the current directory and ends with the call. A signal cancels the call.
/// After the call, signals end the process, because printing the response may block.
pub(crate) fn call<T, Call, Calling>(global: &GlobalArgs, call: Call) -> Result<T, CliError>
where
    T: Send + 'static,
    Call: FnOnce(Client) -> Calling + Send + 'static,
    Calling: Future<Output = Result<T, CliError>> + Send + 'static,
{
    let (result, signals) = match global.address() {
        Some(address) => block_on(until_signal(connect_and_call(address, global, call)))?,
        None => embedded(global, call)?,
    };

    signals.restore_default_action()?;
    result
}

/// Like [`call`], but the call handles signals itself, even while the connection is in progress.
pub(crate) fn call_with_signals<T, Call, Calling>(
    global: &GlobalArgs,
    call: Call,
) -> Result<T, CliError>
where
    T: Send + 'static,
    Call: FnOnce(PendingClient, TerminationSignals) -> Calling + Send + 'static,
    Calling: Future<Output = (T, TerminationSignals)> + Send + 'static,
{
    let call = |address: String, global: GlobalArgs| async move {
        let signals = TerminationSignals::listen()?;
        let connecting = async move { connect(&address, &global).await };
        Ok::<_, CliError>(call(Box::pin(connecting), signals).await)
    };

    let (answer, signals) = match global.address() {
        Some(address) => block_on(call(address.to_owned(), global.clone()))?,
        None => embedded_with(global, call)?,
    };

    signals.restore_default_action()?;
    Ok(answer)
}

/// Runs a call on the daemon at `address`. Signals end the process by default, because writing
/// output may block.
pub(crate) fn call_address<T, Call, Calling>(
    address: &str,
    global: &GlobalArgs,
    call: Call,
) -> Result<T, CliError>
where
    Call: FnOnce(Client) -> Calling,
    Calling: Future<Output = Result<T, CliError>>,
{
    block_on(connect_and_call(address, global, call))
}

/// Creates a runtime of one thread, for the one call.
pub(crate) fn runtime() -> Result<Runtime, CliError> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| LocalError::new("the call cannot be started", &error).into())
}

/// Runs a call to its end. Does not wait for background work, such as a name lookup of a cancelled
/// call.
fn block_on<T>(call: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = runtime()?;
    let result = runtime.block_on(call);
    runtime.shutdown_background();
    result
}

async fn connect_and_call<T, Call, Calling>(
    address: &str,
    global: &GlobalArgs,
    call: Call,
) -> Result<T, CliError>
where
    Call: FnOnce(Client) -> Calling,
    Calling: Future<Output = Result<T, CliError>>,
{
    call(connect(address, global).await?).await
}

/// Connects, and verifies the owner of a daemon that was found.
///
/// The kernel reports the owner of the connected socket too. If another user has replaced the
/// daemon, nothing is sent.
pub(crate) async fn connect(address: &str, global: &GlobalArgs) -> Result<Client, CliError> {
    let client = Client::connect(address, global.client_options()).await?;
    if global.is_default && !is_trusted(address) {
        return Err(no_daemon_error());
    }
    if global.runs_command && global.address().is_none() {
        note_weak_isolation(&client).await;
    }
    Ok(client)
}

/// Prints the isolation of the daemon for this call, if it is not the strongest. If no command can
/// run, the error reports it.
async fn note_weak_isolation(client: &Client) {
    // A failure of GetInfo does not prevent the call.
    let info = client.get_info().await.ok();
    let isolation = info.and_then(|info| info.isolation);
    if let Some(isolation) = isolation.filter(|isolation| isolation.ready)
        && !isolation.summary.is_empty()
    {
        output::note(&isolation.summary);
    }
}

/// Awaits the call. A signal drops and thereby cancels it.
async fn until_signal<T>(
    call: impl Future<Output = Result<T, CliError>>,
) -> Result<CallOutcome<T>, CliError> {
    let mut signals = TerminationSignals::listen()?;
    let result = tokio::select! {
        biased;
        result = call => result,
        code = signals.next() => Err(CliError::Interrupted(code)),
    };
    Ok((result, signals))
}

impl TerminationSignals {
    fn listen() -> Result<Self, CliError> {
        let to_error = |error| LocalError::new("cannot listen for signals", &error);
        let listen = |kind| signal(kind).map_err(to_error);
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            quit: listen(SignalKind::quit())?,
            hangup: if is_ignored(SignalKind::hangup()) {
                None
            } else {
                Some(listen(SignalKind::hangup())?)
            },
        })
    }

    /// Waits for the next signal. Returns its exit code.
    pub(crate) async fn next(&mut self) -> u8 {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => pending().await,
            }
        };

        tokio::select! {
            _ = self.interrupt.recv() => exit::CANCELLED,
            _ = self.terminate.recv() => 128 + 15,
            _ = self.quit.recv() => 128 + 3,
            _ = hangup => 128 + 1,
        }
    }

    /// Makes the next signal end the process. Once tokio has listened for a signal, the system's
    /// default action does not happen.
    fn restore_default_action(mut self) -> Result<(), CliError> {
        let runtime = runtime()?;
        thread::spawn(move || {
            let code = runtime.block_on(self.next());
            // The main thread may be blocked on writing to standard output.
            std::process::exit(i32::from(code));
        });
        Ok(())
    }
}

/// Returns whether a signal was ignored at the start: `SigIgn` in proc_pid_status(5).
fn is_ignored(kind: SignalKind) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());

    let bit = 1_u64 << (kind.as_raw_value() - 1);
    mask.is_some_and(|mask| mask & bit != 0)
}

#[cfg(feature = "daemon")]
fn embedded<T, Call, Calling>(global: &GlobalArgs, call: Call) -> Result<CallOutcome<T>, CliError>
where
    T: Send + 'static,
    Call: FnOnce(Client) -> Calling + Send + 'static,
    Calling: Future<Output = Result<T, CliError>> + Send + 'static,
{
    let (result, signals) = embedded_with(global, |address, global| async move {
        until_signal(connect_and_call(&address, &global, call)).await
    })?;
    Ok((result.map_err(|failure| with_isolation_hint(global, failure)), signals))
}

#[cfg(feature = "daemon")]
fn embedded_with<T, Call, Calling>(global: &GlobalArgs, call: Call) -> Result<T, CliError>
where
    T: Send + 'static,
    Call: FnOnce(String, GlobalArgs) -> Calling + Send + 'static,
    Calling: Future<Output = Result<T, CliError>> + Send + 'static,
{
    global.reject_request_id("without --address the daemon ends with the call")?;
    let to_error = |error| LocalError::new("cannot find the current directory", &error);
    let current_dir = std::env::current_dir().map_err(to_error)?;

    home::check(&current_dir, global.allow_home)?;
    let options = jig::daemon::EmbeddedOptions {
        minimum_level: global.minimum_level().map(str::to_owned),
        chown_workspace: global.chown_workspace,
    };

    let global = global.clone();
    jig::daemon::with_embedded(current_dir, options, |address: String| call(address, global))
        .map_err(CliError::Embedded)?
}

#[cfg(not(feature = "daemon"))]
fn embedded<T, Call, Calling>(_: &GlobalArgs, _: Call) -> Result<CallOutcome<T>, CliError>
where
    Call: FnOnce(Client) -> Calling,
{
    Err(built_without_daemon())
}

#[cfg(not(feature = "daemon"))]
fn embedded_with<T, Call, Calling>(_: &GlobalArgs, _: Call) -> Result<T, CliError>
where
    Call: FnOnce(String, GlobalArgs) -> Calling,
{
    Err(built_without_daemon())
}

#[cfg(not(feature = "daemon"))]
fn built_without_daemon() -> CliError {
    CliError::Usage(
        "this jig was built without the daemon: name one with --address or JIG_ADDRESS".to_owned(),
    )
}
