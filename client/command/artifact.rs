//! `jig artifact`: prints an artifact of a call.

use std::{io, process::ExitCode};

use clap::Args;
use jig::{api::v1::ReadArtifactRequest, client::Client};

use super::report_and_exit;
use crate::{connection, global::GlobalArgs};

/// Print an artifact of a call, such as the complete output of a command, or a part of it.
///
/// Prints the bytes unchanged; --json affects errors only.
#[derive(Debug, Args)]
pub(crate) struct ArtifactArgs {
    /// Path of the artifact as the call returned it, for example `logs/tool_step_0005_stdout.txt`.
    /// It belongs to the session of the call (--session), or to --job.
    path: String,
    /// Id of a fleet job that was submitted with --store-artifacts. Any daemon of the fleet has its
    /// artifacts once it has ended.
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// Offset of the first byte to print, counted from 0.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    offset: u64,
    /// Maximum number of bytes to print. Default: to the end.
    #[arg(long, value_name = "BYTES")]
    limit: Option<u64>,
}

pub(crate) fn artifact(global: &GlobalArgs, args: ArtifactArgs) -> ExitCode {
    let request = ReadArtifactRequest {
        path: args.path,
        offset: args.offset,
        limit: args.limit,
        job_id: args.job.unwrap_or_default(),
    };
    let result = global.require_address().and_then(|address| {
        connection::call_address(address, global, async |client: Client| {
            client.copy_artifact(request, io::stdout().lock()).await?;
            Ok(())
        })
    });
    report_and_exit(result, global.json)
}
