//! Runs one call per path over one connection.
//!
//! A path that fails does not prevent the next calls. The exit code is that of the worst failure.

use std::{
    future::Future,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

use jig::client::Client;
use serde_json::{Value, json};

use super::{exit_code, report_and_exit, report_failure};
use crate::{cli_error::CliError, connection, escape, exit, global::GlobalArgs, output};

/// Results so far. Clones share them, so that they are printed even if a signal ends the command.
type PathResults<T> = Arc<Mutex<Vec<(String, Result<T, CliError>)>>>;

/// Rejects a request id if there are several calls.
pub(super) fn check_request_id(global: &GlobalArgs, paths: &[String]) -> Result<(), CliError> {
    if paths.len() > 1 {
        global.reject_request_id("each path is a call of its own")?;
    }
    Ok(())
}

/// Runs `call` for each path in turn, and prints each response as text or JSON.
///
/// With several paths, each JSON line names its path.
pub(super) fn call_for_each_path<T, Call, Calling>(
    global: &GlobalArgs,
    paths: Vec<String>,
    call: Call,
    to_json: impl Fn(&T) -> Value,
    print: impl Fn(&str, &T) -> Result<(), CliError>,
) -> ExitCode
where
    T: Send + 'static,
    Call: Fn(Client, String) -> Calling + Send + 'static,
    Calling: Future<Output = Result<T, CliError>> + Send + 'static,
{
    let as_json = global.json;
    if let Err(failure) = check_request_id(global, &paths) {
        return report_and_exit(Err(failure), as_json);
    }

    let is_single = paths.len() == 1;
    let results = PathResults::default();
    let results_writer = Arc::clone(&results);
    let ended = connection::call(global, async move |client: Client| {
        collect_results(&client, paths, call, &results_writer).await;
        Ok(())
    });

    let mut worst = exit::SUCCESS;
    let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
    for (path, result) in results.drain(..) {
        let printed = result.and_then(|response| {
            if !as_json {
                return print(&path, &response);
            }
            let value = to_json(&response);
            output::write_json(&if is_single { value } else { with_path(&path, value) })
        });
        let Err(failure) = printed else { continue };

        // If the reader has gone, the other results cannot be printed either.
        if matches!(failure, CliError::Output(_)) {
            return ExitCode::from(report_failure(&failure, as_json));
        }

        if is_single {
            failure.report(as_json);
        } else {
            report_path_failure(&path, &failure, as_json);
        }
        worst = worst.max(exit_code(&failure));
    }

    if let Err(failure) = ended {
        worst = worst.max(report_failure(&failure, as_json));
    }
    ExitCode::from(worst)
}

/// Runs `call` for each path in turn. Stops at a failure that concerns the other paths too.
async fn collect_results<T, Call, Calling>(
    client: &Client,
    paths: Vec<String>,
    call: Call,
    results: &PathResults<T>,
) where
    Call: Fn(Client, String) -> Calling,
    Calling: Future<Output = Result<T, CliError>>,
{
    for path in paths {
        let result = call(client.clone(), path.clone()).await;
        let is_fatal = matches!(&result, Err(failure) if !failure.is_file_error());
        results.lock().unwrap_or_else(PoisonError::into_inner).push((path, result));
        if is_fatal {
            return;
        }
    }
}

/// Reports the failure of one of several paths.
pub(super) fn report_path_failure(path: &str, failure: &CliError, as_json: bool) {
    if as_json {
        let error = json!({ "error": failure.to_json() });
        // If this fails too, the exit code reports the failure.
        output::write_json(&with_path(path, error)).ok();
    } else {
        output::note(&format!("{}: {}", escape::name(path), failure.summary()));
    }
}

/// Adds the path to a JSON object.
fn with_path(path: &str, mut value: Value) -> Value {
    if let Some(object) = value.as_object_mut() {
        object.insert("path".to_owned(), path.into());
    }
    value
}
