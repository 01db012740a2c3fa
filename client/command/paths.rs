//! Commands that take several paths: one call for each, over one connection. A path that fails does not
//! keep the command from the next one; the exit code is that of the worst failure.

use std::{
    future::Future,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

use jig::client::Client;
use serde_json::{Value, json};

use super::{exit_code, report_and_exit, report_failure};
use crate::{cli_error::CliError, connection, escape, exit, global::GlobalArgs, output};

/// What the calls answered so far. Clones share it: it is printed also when a signal ends the command.
type PathResults<T> = Arc<Mutex<Vec<(String, Result<T, CliError>)>>>;

/// Refuses a request id for several calls.
pub(super) fn check_request_id(global: &GlobalArgs, paths: &[String]) -> Result<(), CliError> {
    if paths.len() > 1 {
        global.reject_request_id("each path is a call")?;
    }
    Ok(())
}

/// Calls for each path in turn, and prints each answer as text, or as a line of JSON that names its
/// path where there are several.
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
    let is_one = paths.len() == 1;
    let answers = PathResults::default();
    let to_fill = Arc::clone(&answers);
    let ended = connection::call(global, async move |client: Client| {
        for path in paths {
            let result = call(client.clone(), path.clone()).await;
            let is_last = matches!(&result, Err(failure) if !failure.is_file_error());
            let mut answers = to_fill.lock().unwrap_or_else(PoisonError::into_inner);
            answers.push((path, result));
            if is_last {
                break;
            }
        }
        Ok(())
    });

    let mut worst = exit::SUCCESS;
    let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
    for (path, result) in answers.drain(..) {
        let printed = result.and_then(|answer| {
            if !as_json {
                return print(&path, &answer);
            }
            let value = to_json(&answer);
            output::write_json(&if is_one { value } else { with_path(&path, value) })
        });
        let Err(failure) = printed else { continue };
        // Nobody reads the others either.
        if matches!(failure, CliError::Output(_)) {
            return ExitCode::from(report_failure(&failure, as_json));
        }
        if is_one {
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

/// Says what went wrong with one of several paths.
pub(super) fn report_path_failure(path: &str, failure: &CliError, as_json: bool) {
    if as_json {
        let error = json!({ "error": failure.to_json() });
        // Should that fail too, the exit code is all that is left.
        output::write_json(&with_path(path, error)).ok();
    } else {
        output::note(&format!("{}: {}", escape::name(path), failure.summary()));
    }
}

/// The object with its path.
fn with_path(path: &str, mut value: Value) -> Value {
    if let Some(object) = value.as_object_mut() {
        object.insert("path".to_owned(), path.into());
    }
    value
}
