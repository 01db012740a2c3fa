//! `jig health`: the standard gRPC health check. Its exit codes are those of `grpc_health_probe`,
//! which it can replace in a container.

use std::process::ExitCode;

use clap::Args;
use jig::client::ServingStatus;

use crate::{cli_error::CliError, connection, exit, global::GlobalArgs, json, output};

/// Check the health of the daemon (grpc.health.v1).
///
/// Exit codes: 0 serving, 1 invalid arguments, 2 connection failed, 3 call failed, 4 not serving,
/// 64 no daemon given and none found.
#[derive(Debug, Args)]
pub(crate) struct HealthArgs {
    /// Service to check, for example `jig.v1.ToolService`. Default: the daemon as a whole.
    service: Option<String>,
}

pub(crate) fn health(global: &GlobalArgs, args: HealthArgs) -> ExitCode {
    let service = args.service.unwrap_or_default();
    let result = connection::call(global, async move |client: jig::client::Client| {
        Ok(client.check_health(service).await?)
    });

    let result = result.and_then(|status| {
        if global.json {
            output::write_json(&json::health(status))?;
        } else {
            output::write_stdout(format!("{}\n", status.name()).as_bytes())?;
        }
        Ok(status)
    });

    if let Err(failure) = &result {
        failure.report(global.json);
    }
    ExitCode::from(exit_code(&result))
}

fn exit_code(result: &Result<ServingStatus, CliError>) -> u8 {
    use jig::client::ConnectError;

    match result {
        Ok(ServingStatus::Serving) => exit::SUCCESS,
        Ok(_) => exit::HEALTH_NOT_SERVING,
        Err(
            CliError::Usage(_)
            | CliError::Connect(
                ConnectError::Address(_) | ConnectError::Option { .. } | ConnectError::TlsOption(_),
            ),
        ) => exit::HEALTH_USAGE,
        Err(CliError::Connect(_)) => exit::HEALTH_CONNECT,
        Err(CliError::Interrupted(code)) => *code,
        Err(
            CliError::Call(_)
            | CliError::Embedded(_)
            | CliError::Local(_)
            | CliError::System(_)
            | CliError::Daemon(_)
            | CliError::Output(_),
        ) => exit::HEALTH_CALL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_match_grpc_health_probe() {
        let global = GlobalArgs::default();
        assert_eq!(exit_code(&Ok(ServingStatus::Serving)), 0);
        assert_eq!(exit_code(&Ok(ServingStatus::NotServing)), 4);
        assert_eq!(exit_code(&Ok(ServingStatus::Unknown)), 4);
        assert_eq!(exit_code(&Err(CliError::Usage(String::new()))), 1);
        for (address, code) in [("nonsense", 1), ("unix:/nowhere/jig.sock", 2)] {
            let result =
                connection::call_address(address, &global, async |_| Ok(ServingStatus::Serving));
            assert_eq!(exit_code(&result), code, "{address}");
        }
    }
}
