//! Measures workspaces on demand: the time from the request that creates one to the answer of its
//! first command.

use std::time::Instant;

use jig::{
    api::v1::{CreateWorkspaceRequest, DeleteWorkspaceRequest},
    client::{Client, Options},
};
use tokio::runtime::Runtime;

use super::{
    super::{
        daemon::{Daemon, DaemonSettings},
        statistics::Samples,
    },
    calls::{self, RunBenchCase},
};
use crate::cli_error::CliError;

/// Results for workspaces that were created, used and deleted one after the other.
#[derive(Debug)]
pub(super) struct NewWorkspaces {
    /// Times of `CreateWorkspace` alone.
    pub(super) creations: Samples,
    /// Times of `CreateWorkspace` and the first command.
    pub(super) first_answers: Samples,
    /// Times of `DeleteWorkspace`.
    pub(super) deletions: Samples,
}

pub(super) fn measure(
    runtime: &Runtime,
    options: &Options,
    count: usize,
) -> Result<NewWorkspaces, CliError> {
    let settings = DaemonSettings { creates_workspaces: true, ..DaemonSettings::default() };
    let daemon = Daemon::start_with_settings(&settings)?;
    let (mut creations, mut first_answers, mut deletions) = (Vec::new(), Vec::new(), Vec::new());
    runtime.block_on(async {
        let creator = Client::connect(daemon.address(), options.clone()).await?;
        for number in 0..count {
            let name = format!("bench-{number}");
            let options = Options { workspace: Some(name.clone()), ..options.clone() };
            let client = Client::connect(daemon.address(), options).await?;
            let start = Instant::now();
            let request = CreateWorkspaceRequest { name: name.clone(), ..Default::default() };
            creator.create_workspace(request).await?;
            creations.push(start.elapsed());
            calls::run(&client, calls::request(RunBenchCase::Jig)).await?;
            first_answers.push(start.elapsed());

            let start = Instant::now();
            creator.delete_workspace(DeleteWorkspaceRequest { name }).await?;
            deletions.push(start.elapsed());
        }
        Ok::<(), CliError>(())
    })?;
    Ok(NewWorkspaces {
        creations: Samples::new(creations),
        first_answers: Samples::new(first_answers),
        deletions: Samples::new(deletions),
    })
}
