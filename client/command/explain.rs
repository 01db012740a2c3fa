//! `jig explain`: what the reason of an error means, and what to do about it.

use std::process::ExitCode;

use clap::Args;
use jig::api::{
    FILE_DESCRIPTOR_SET,
    reason::{Reason, code_name},
};
use prost::Message as _;
use prost_types::{FileDescriptorProto, FileDescriptorSet};
use serde_json::{Value, json};

use super::{columns::align_columns, report_and_exit};
use crate::{global::GlobalArgs, output};

/// Explain the reason of an error, such as `SANDBOX_UNAVAILABLE`.
///
/// Prints its gRPC code, advice for callers and operators, and the calls that return it. Without a
/// reason, lists all. Needs no daemon.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The reason, in any case.
    #[arg(value_parser = parse_reason)]
    reason: Option<Reason>,
}

fn parse_reason(text: &str) -> Result<Reason, &'static str> {
    let name = text.to_uppercase().replace('-', "_");
    Reason::from_name(&name).ok_or("no error has this reason; `jig explain` lists all reasons")
}

/// A case in which calls return a reason.
#[derive(Debug, PartialEq, Eq)]
struct Case {
    /// `ToolService/Run`, or `ToolService` for all methods of the service.
    method: String,
    condition: String,
}

pub(crate) fn explain(global: &GlobalArgs, args: ExplainArgs) -> ExitCode {
    let printed = match (args.reason, global.json) {
        (Some(reason), false) => output::write_stdout(page(reason).as_bytes()),
        (Some(reason), true) => output::write_json(&to_json(reason)),
        (None, false) => output::write_stdout(list().as_bytes()),
        (None, true) => {
            let reasons: Vec<_> = Reason::ALL.iter().copied().map(to_json).collect();
            output::write_json(&json!({ "reasons": reasons }))
        }
    };
    report_and_exit(printed, global.json)
}

fn list() -> String {
    let rows: Vec<_> = Reason::ALL
        .iter()
        .map(|reason| vec![reason.name().to_owned(), reason.meaning().to_owned()])
        .collect();
    align_columns(&rows)
}

fn page(reason: Reason) -> String {
    let mut page = format!(
        "{} ({})\n\n{}\n\nCaller:   {}\nOperator: {}\n",
        reason,
        code_name(reason.code()),
        reason.meaning(),
        reason.suggestion(),
        reason.remedy(),
    );
    let cases = cases(reason);
    if !cases.is_empty() {
        page.push_str("\nReturned by:\n");
        let rows: Vec<_> =
            cases.into_iter().map(|case| vec![case.method, case.condition]).collect();
        for line in align_columns(&rows).lines() {
            page.extend(["  ", line, "\n"]);
        }
    }
    page
}

fn to_json(reason: Reason) -> Value {
    let cases: Vec<_> = cases(reason)
        .into_iter()
        .map(|case| json!({ "method": case.method, "condition": case.condition }))
        .collect();
    json!({
        "reason": reason.name(),
        "code": code_name(reason.code()),
        "meaning": reason.meaning(),
        "caller": reason.suggestion(),
        "operator": reason.remedy(),
        "returned_by": cases,
    })
}

/// Finds the cases of a reason in the comments of the contract, which list them under "Errors".
fn cases(reason: Reason) -> Vec<Case> {
    let contract = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap_or_default();
    let commented = contract.file.iter().flat_map(commented_methods);
    commented
        .flat_map(|(method, comment)| {
            let conditions = conditions(reason, comment).into_iter();
            conditions.map(move |condition| Case { method: method.clone(), condition })
        })
        .collect()
}

/// The services and methods of a file, with their comments.
fn commented_methods(file: &FileDescriptorProto) -> Vec<(String, &str)> {
    let locations = file.source_code_info.iter().flat_map(|info| &info.location);
    locations
        .filter_map(|location| {
            // Field numbers of FileDescriptorProto.service and ServiceDescriptorProto.method.
            let (service, method) = match *location.path {
                [6, service] => (service, None),
                [6, service, 2, method] => (service, Some(method)),
                _ => return None,
            };
            let service = file.service.get(usize::try_from(service).ok()?)?;
            let mut name = service.name().to_owned();
            if let Some(method) = method {
                let method = service.method.get(usize::try_from(method).ok()?)?;
                name.extend(["/", method.name()]);
            }
            Some((name, location.leading_comments()))
        })
        .collect()
}

/// The conditions under which a comment lists a reason, as items of the form
/// ``* `REASON` (`CODE`): condition``.
fn conditions(reason: Reason, comment: &str) -> Vec<String> {
    let items = comment.split("\n * ").skip(1);
    items
        .filter_map(|item| {
            let item = item.split("\n\n").next()?.strip_prefix('`')?;
            let (name, rest) = item.split_once('`')?;
            let (_, condition) = rest.split_once(": ")?;
            let words: Vec<_> = condition.split_whitespace().collect();
            (name == reason.name()).then(|| words.join(" "))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_case() {
        for reason in Reason::ALL {
            assert_ne!(cases(*reason), [], "{reason}");
        }
    }

    #[test]
    fn reasons_are_found_in_any_case() {
        assert_eq!(parse_reason("no-space"), Ok(Reason::NoSpace));
        assert_eq!(parse_reason("NO_SPACE"), Ok(Reason::NoSpace));
        assert!(parse_reason("no space").unwrap_err().contains("jig explain"));
    }

    #[test]
    fn conditions_end_with_their_item() {
        let comment = " Errors:\n * `NO_SPACE` (`RESOURCE_EXHAUSTED`): the disk\n   is full.\n * `TIMEOUT`: late.\n\n More.\n";
        assert_eq!(conditions(Reason::NoSpace, comment), ["the disk is full."]);
        assert_eq!(conditions(Reason::Timeout, comment), ["late."]);
        assert_eq!(conditions(Reason::Draining, comment), [""; 0]);
    }
}
