//! The caller who calls as much as he can: in a process of his own, which yields to all others, as
//! those who call from other machines take none of this one's time.

use std::{
    num::NonZeroUsize,
    process::{Child, Command, Stdio},
};

use clap::Args;
use jig::client::Client;
use tokio::task::JoinSet;

use super::case::FairBenchCase;
use crate::{cli_error::CliError, connection, global::GlobalArgs};

/// Connections over which the calls are spread.
const FLOOD_CONNECTIONS: usize = 8;
/// How much the process yields (setpriority(2)).
const FLOOD_NICE: i32 = 19;

/// Call one tool without end.
#[derive(Debug, Args)]
pub(crate) struct FloodArgs {
    /// What to call.
    #[arg(long)]
    kind: FairBenchCase,
    /// Calls at one time.
    #[arg(long)]
    streams: NonZeroUsize,
}

/// A flood, until this is dropped.
#[derive(Debug)]
pub(super) struct Flood(Child);

impl Flood {
    /// Begins one.
    pub(super) fn start(
        address: &str,
        key: &str,
        kind: FairBenchCase,
        streams: usize,
    ) -> Result<Self, CliError> {
        let name = clap::ValueEnum::to_possible_value(&kind);
        #[expect(
            clippy::disallowed_methods,
            reason = "who floods must not share a process with whose times are taken"
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
        // One that has ended by itself is to be waited for all the same.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Floods until it is killed.
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
                    // Whatever it answers: this caller does not mind.
                    let _answer = kind.call(&client).await;
                }
                #[expect(unreachable_code, reason = "the type of its end")]
                Ok(())
            });
        }
        // None of them ends.
        match streams.join_next().await {
            Some(Err(error)) => Err(CliError::system(error)),
            Some(Ok(never)) => never,
            None => Ok(()),
        }
    })
}
