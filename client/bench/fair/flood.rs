//! The client that saturates the daemon, in a process of its own.
//!
//! The process runs at the lowest priority, because clients on other machines would not use this
//! machine's CPUs.

use std::{
    num::NonZeroUsize,
    process::{Child, Command, Stdio},
};

use clap::Args;
use jig::client::Client;
use tokio::task::JoinSet;

use super::case::FairBenchCase;
use crate::{cli_error::CliError, connection, global::GlobalArgs};

/// Number of connections over which the calls are spread.
const FLOOD_CONNECTIONS: usize = 8;
/// Nice value of the process (setpriority(2)).
const FLOOD_NICE: i32 = 19;

/// Call one tool in an endless loop.
#[derive(Debug, Args)]
pub(crate) struct FloodArgs {
    /// Kind of call.
    #[arg(long)]
    kind: FairBenchCase,
    /// Number of concurrent calls.
    #[arg(long)]
    streams: NonZeroUsize,
}

/// A running flood. Dropping it ends the process.
#[derive(Debug)]
pub(super) struct Flood(Child);

impl Flood {
    /// Starts a flood.
    pub(super) fn start(
        address: &str,
        key: &str,
        kind: FairBenchCase,
        streams: usize,
    ) -> Result<Self, CliError> {
        let name = clap::ValueEnum::to_possible_value(&kind);
        #[expect(
            clippy::disallowed_methods,
            reason = "the flood must not share a process with the client that is measured"
        )]
        let mut command = Command::new("/proc/self/exe");

        command
            .args(["bench", "flood", "--streams", &streams.to_string(), "--kind"])
            .args(name.iter().map(clap::builder::PossibleValue::get_name))
            .env("JIG_ADDRESS", address)
            .env("JIG_KEY", key)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command.spawn().map(Self).map_err(CliError::system)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        // `wait` is needed even if the process has already ended.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Floods the daemon until the process is killed.
pub(in super::super) fn bench_flood(global: &GlobalArgs, args: &FloodArgs) -> Result<(), CliError> {
    rustix::process::nice(FLOOD_NICE).map_err(CliError::system)?;
    let address = global.address().unwrap_or_default();

    connection::runtime()?.block_on(async {
        let mut clients = Vec::new();
        for _ in 0..FLOOD_CONNECTIONS {
            clients.push(Client::connect(address, global.client_options()).await?);
        }

        let mut streams = JoinSet::new();
        for client in clients.iter().cycle().take(args.streams.get()) {
            let (client, kind) = (client.clone(), args.kind);
            streams.spawn(async move {
                loop {
                    // Errors do not matter here.
                    let _response = kind.call(&client).await;
                }
                #[expect(unreachable_code, reason = "gives the task its return type")]
                Ok(())
            });
        }

        // No task ends, except by a panic.
        match streams.join_next().await {
            Some(Err(error)) => Err(CliError::system(error)),
            Some(Ok(never)) => never,
            None => Ok(()),
        }
    })
}
