//! Commands that take several paths: one call for each, over one connection. A path that fails does not
//! keep the command from the next one; the exit code is that of the worst failure.

use std::{
    future::Future,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

use jig::client::Client;
use serde_json::{Value, json};

use super::{exit_code, failed, finish};
use crate::{connection, escape, exit, failure::Failure, global::Global, output};

/// What the calls answered so far. Clones share it: it is printed also when a signal ends the command.
type Answers<T> = Arc<Mutex<Vec<(String, Result<T, Failure>)>>>;

/// Refuses a request id for several calls.
pub(super) fn check_request_id(global: &Global, paths: &[String]) -> Result<(), Failure> {
    if paths.len() > 1 {
        global.refuse_request_id("each path is a call")?;
    }
    Ok(())
}

/// Calls for each path in turn, and prints each answer as text, or as a line of JSON that names its
/// path where there are several.
pub(super) fn each<T, Call, Calling>(
    global: &Global,
    paths: Vec<String>,
    call: Call,
    to_json: impl Fn(&T) -> Value,
    print: impl Fn(&str, &T) -> Result<(), Failure>,
) -> ExitCode
where
    T: Send + 'static,
    Call: Fn(Client, String) -> Calling + Send + 'static,
    Calling: Future<Output = Result<T, Failure>> + Send + 'static,
{
    let as_json = global.json;
    if let Err(failure) = check_request_id(global, &paths) {
        return finish(Err(failure), as_json);
    }
    let is_one = paths.len() == 1;
    let answers = Answers::default();
    let to_fill = Arc::clone(&answers);
    let ended = connection::call(global, async move |client: Client| {
        for path in paths {
            let result = call(client.clone(), path.clone()).await;
            let is_last = matches!(&result, Err(failure) if !failure.is_of_one_file());
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
            output::json(&if is_one { value } else { named(&path, value) })
        });
        let Err(failure) = printed else { continue };
        // Nobody reads the others either.
        if matches!(failure, Failure::Output(_)) {
            return ExitCode::from(failed(&failure, as_json));
        }
        if is_one {
            failure.report(as_json);
        } else {
            report(&path, &failure, as_json);
        }
        worst = worst.max(exit_code(&failure));
    }
    if let Err(failure) = ended {
        worst = worst.max(failed(&failure, as_json));
    }
    ExitCode::from(worst)
}

/// Says what went wrong with one of several paths.
pub(super) fn report(path: &str, failure: &Failure, as_json: bool) {
    if as_json {
        let error = json!({ "error": failure.json() });
        // Should that fail too, the exit code is all that is left.
        output::json(&named(path, error)).ok();
    } else {
        output::note(&format!("{}: {}", escape::name(path), failure.summary()));
    }
}

/// The object with its path.
fn named(path: &str, mut value: Value) -> Value {
    if let Some(object) = value.as_object_mut() {
        object.insert("path".to_owned(), path.into());
    }
    value
}
