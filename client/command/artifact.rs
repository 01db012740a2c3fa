//! `jig artifact`: what a call left behind, byte by byte.

use std::{io, process::ExitCode};

use clap::Args;
use jig::{api::v1::ReadArtifactRequest, client::Client};

use super::report_and_exit;
use crate::{connection, global::GlobalArgs};

/// Print the whole output of a command, or a part of it.
///
/// The bytes are printed as they are, also with --json, which then is about errors only.
#[derive(Debug, Args)]
pub(crate) struct ArtifactArgs {
    /// Path as the call's answer gave it: `logs/tool_step_0005_stdout.txt`. It belongs to the
    /// session of the call (--session).
    path: String,
    /// First byte to print, counted from 0.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    offset: u64,
    /// Most bytes to print.
    #[arg(long, value_name = "BYTES")]
    limit: Option<u64>,
}

pub(crate) fn artifact(global: &GlobalArgs, args: ArtifactArgs) -> ExitCode {
    let request = ReadArtifactRequest { path: args.path, offset: args.offset, limit: args.limit };
    let result = global.require_address().and_then(|address| {
        connection::call_address(address, global, async |client: Client| {
            client.copy_artifact(request, io::stdout().lock()).await?;
            Ok(())
        })
    });
    report_and_exit(result, global.json)
}
