//! `jig health`: the standard health check, with the exit codes of `grpc_health_probe`, whose place
//! in a container it can take.

use std::process::ExitCode;

use clap::Args;
use jig::client::ServingStatus;

use crate::{cli_error::CliError, connection, exit, global::GlobalArgs, json, output};

/// Ask whether the daemon answers calls.
///
/// Exits with 0 when it does; 1 when the arguments are wrong, 2 when there is no connection, 3 when
/// the call failed, 4 when it does not answer calls; 64 when none is named and none is found.
#[derive(Debug, Args)]
pub(crate) struct HealthArgs {
    /// Service to ask for, as `jig.v1.ToolService`; without it, the daemon as a whole.
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
        Ok(_) => exit::HEALTH_UNHEALTHY,
        Err(
            CliError::Usage(_)
            | CliError::Connect(ConnectError::Address(_) | ConnectError::Option { .. }),
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
    fn exit_codes_are_those_of_the_probe() {
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
