//! `jig events` prints the events of a session, and `jig sessions` lists the sessions.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use jig::{
    api::{
        json_struct::struct_to_json,
        v1::{
            CallResult, Event, ListSessionsRequest, ResultAbsence, SessionInfo, WatchEventsRequest,
            watch_events_response::Item,
        },
    },
    client::{CallError, Client, Code},
};
use serde_json::{Map, Value, json};

use super::report_and_exit;
use crate::{cli_error::CliError, connection, escape, global::GlobalArgs, output};

/// Maximum length of an event's detail, in characters.
const MAX_DETAIL_CHARS: usize = 120;
/// Delay between attempts to reconnect to the daemon.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// Print the events of a session (--session): each call, its outcome and what it did.
///
/// Example: `jig events --follow --type tool_call_finished`.
///
/// With --json, prints one record per line, as the daemon stores it.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Continue with new events until interrupted. Reconnects if the daemon is away.
    #[arg(short, long)]
    follow: bool,
    /// Print only records after this sequence number.
    #[arg(long, value_name = "SEQUENCE", default_value_t = 0)]
    after: u64,
    /// Print only the last COUNT records, and with --follow the new ones.
    #[arg(long, value_name = "COUNT", conflicts_with = "after")]
    tail: Option<u32>,
    /// Print only events of this type, for example `tool_call_finished`. Repeatable.
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<String>,
    /// With --follow, also print the results of calls by name that end from now on.
    #[arg(long, requires = "follow")]
    with_results: bool,
}

/// List the sessions of a workspace.
#[derive(Debug, Args)]
pub(crate) struct SessionsArgs {}

pub(crate) fn events(global: &GlobalArgs, args: EventsArgs) -> ExitCode {
    let request = WatchEventsRequest {
        after_sequence: args.after,
        follow: Some(args.follow),
        types: args.types,
        keep_alive_sec: None,
        tail: args.tail,
        with_results: args.with_results,
    };
    let result = global.require_address().and_then(|address| {
        connection::call_address(address, global, async |client: Client| {
            watch(&client, request, global.json).await
        })
    });
    report_and_exit(result, global.json)
}

/// Prints events until the stream ends. With `follow`, waits for an unavailable daemon.
async fn watch(
    client: &Client,
    mut request: WatchEventsRequest,
    as_json: bool,
) -> Result<(), CliError> {
    let follows = request.follow == Some(true);
    let mut events = client.watch_events(request.clone()).await?;
    loop {
        let error = match events.next().await {
            Ok(Some(item)) => {
                print_item(item, as_json)?;
                continue;
            }
            Ok(None) => return Ok(()),
            Err(error) => error,
        };

        if !follows || !is_daemon_unavailable(&error) {
            return Err(error.into());
        }

        output::note("the daemon is unavailable: waiting for it (Ctrl-C stops)");
        request.after_sequence = events.after_sequence();
        request.tail = None;

        events = loop {
            tokio::time::sleep(RECONNECT_DELAY).await;
            match client.watch_events(request.clone()).await {
                Ok(events) => break events,
                Err(error) if is_daemon_unavailable(&error) => {}
                Err(error) => return Err(error.into()),
            }
        };
    }
}

/// Returns whether the connection to the daemon was lost, or the daemon is shutting down.
fn is_daemon_unavailable(error: &CallError) -> bool {
    // Errors from the daemon itself have a reason; errors of the connection have none.
    let is_lost = error.reason.is_none()
        && matches!(
            error.code,
            Code::Unavailable | Code::DataLoss | Code::Unknown | Code::Cancelled | Code::Internal
        );
    is_lost || error.name() == "DRAINING"
}

fn print_item(item: Item, as_json: bool) -> Result<(), CliError> {
    match item {
        Item::Event(event) if as_json => {
            let mut record =
                Value::Object(struct_to_json(event.record.clone().unwrap_or_default()));
            if event.result_absence() != ResultAbsence::Unspecified {
                record["result_absence"] = event.result_absence().as_str_name().into();
            }
            output::write_json(&record)
        }
        Item::Event(event) => output::write_stdout(event_line(event).as_bytes()),
        Item::Gap(gap) => {
            output::note(&format!("records before {} are no longer stored", gap.first_sequence));
            Ok(())
        }
        Item::CallResult(result) if as_json => output::write_json(&result_json(&result)),
        Item::CallResult(result) => output::write_stdout(result_line(&result).as_bytes()),
        Item::CallResultGap(gap) => {
            output::note(&format!(
                "{} results were dropped: jig read them too slowly",
                gap.results
            ));
            Ok(())
        }
        Item::KeepAlive(_) => Ok(()),
    }
}

fn result_json(result: &CallResult) -> Value {
    json!({
        "event": "call_result",
        "call_id": result.call_id,
        "request_id": result.request_id,
        "job_id": result.job_id,
        "tool": result.tool,
        "dialect": result.dialect,
        "content": result.content,
        "is_error": result.is_error,
        "truncated": result.truncated,
        "absence": result.absence().as_str_name(),
    })
}

/// Formats a result, which follows the line of its event.
fn result_line(result: &CallResult) -> String {
    let status = if result.is_error { "error" } else { "success" };
    let absence = result.absence();
    let content = if absence == ResultAbsence::Unspecified {
        shorten(&result.content)
    } else {
        let reason = absence.as_str_name().trim_start_matches("RESULT_ABSENCE_");
        format!("({})", reason.to_lowercase())
    };
    let line = format!(
        "{:<24}  {:>5}  {:<16}  {status:<8}  {content}",
        "",
        "result",
        single_line(&result.tool)
    );
    format!("{}\n", line.trim_end())
}

pub(crate) fn sessions(global: &GlobalArgs, SessionsArgs {}: SessionsArgs) -> ExitCode {
    let result = global.require_address().and_then(|address| {
        connection::call_address(address, global, async |client: Client| {
            let mut request = ListSessionsRequest::default();
            loop {
                let page = client.list_sessions(request.clone()).await?;
                for session in &page.sessions {
                    print(session, global.json)?;
                }
                if page.next_page_token.is_empty() {
                    return Ok(());
                }
                request.page_token = Some(page.next_page_token);
            }
        })
    });
    report_and_exit(result, global.json)
}

fn print(session: &SessionInfo, as_json: bool) -> Result<(), CliError> {
    let time = session.last_event_time.map(|time| time.to_string());
    if as_json {
        return output::write_json(&json!({
            "session": session.session,
            "last_step": session.last_step,
            "last_sequence": session.last_sequence,
            "last_event_time": time,
        }));
    }
    let line = format!(
        "{:<24}  {:>6} steps  {}  {}\n",
        time.map_or_else(|| "-".to_owned(), |time| format_time(&time)),
        session.last_step,
        session.last_sequence,
        single_line(&session.session),
    );
    output::write_stdout(line.as_bytes())
}

/// Formats an event for people: time, step, tool, state and detail.
fn event_line(event: Event) -> String {
    let time = event.time.map(|time| time.to_string()).unwrap_or_default();
    let record = EventRecord(struct_to_json(event.record.unwrap_or_default()));
    let (state, detail) = match event.r#type.as_str() {
        "tool_call_started" => ("started", record.started_detail()),
        "tool_call_finished" => (record.text("status"), record.finished_detail()),
        "tool_call_denied" => ("denied", record.denied_detail()),
        "approval_requested" => ("pending", record.requested_detail()),
        "approval_decided" => ("decided", record.decided_detail()),
        "PATCH_APPLIED" => ("patch_applied", String::new()),
        other => (other, String::new()),
    };

    let line = format!(
        "{:<24}  {:>5}  {:<16}  {:<8}  {detail}",
        format_time(&time),
        event.step,
        single_line(&event.tool),
        single_line(state),
        detail = shorten(&detail),
    );
    format!("{}\n", line.trim_end())
}

/// A complete record. Each method formats what its type of event adds.
struct EventRecord(Map<String, Value>);

impl EventRecord {
    /// Returns a text field. Empty if it is absent.
    fn text(&self, name: &str) -> &str {
        self.0.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    fn started_detail(&self) -> String {
        // In a dialect, `params` are those of the model.
        call_detail(self.0.get("tool_params").or_else(|| self.0.get("params")))
    }

    fn finished_detail(&self) -> String {
        let seconds = self.0.get("duration_sec").and_then(Value::as_f64);
        let duration = seconds.map_or_else(String::new, |seconds| format!("{seconds:.3}s"));
        let outcome = match (self.text("outcome"), self.0.get("exit_code")) {
            ("EXITED", Some(code)) => format!("exit {code}"),
            ("", _) if self.text("status") == "error" => {
                format!("{}: {}", self.text("error_type"), self.text("message"))
            }
            (outcome, _) => outcome.to_lowercase().replace('_', " "),
        };
        format!("{duration:>9}  {outcome}")
    }

    fn denied_detail(&self) -> String {
        format!("call of {}, by {}", self.text("principal"), self.text("denied_by"))
    }

    fn requested_detail(&self) -> String {
        // Records of version 0.1.0 have `asked_by`.
        let required_by = match self.text("required_by") {
            "" => self.text("asked_by"),
            required_by => required_by,
        };
        let [id, principal] = ["approval_id", "principal"].map(|name| self.text(name));
        let call = call_detail(self.0.get("params"));
        format!("{id} of {principal}, required by {required_by}: {call}")
    }

    fn decided_detail(&self) -> String {
        let [id, by, rule, comment] =
            ["approval_id", "decided_by", "rule_id", "comment"].map(|name| self.text(name));
        let state = self.text("state").to_lowercase();
        // `decided_by` may already name the rule.
        let rule = if rule.is_empty() || by.ends_with(rule) {
            String::new()
        } else {
            format!(", with rule {rule}")
        };
        let colon = if comment.is_empty() { "" } else { ": " };
        format!("{id} {state} by {by}{rule}{colon}{comment}")
    }
}

/// Returns the parameter that describes a call best: its command or its path.
fn call_detail(params: Option<&Value>) -> String {
    let param = |name: &str| params?.get(name);
    let words = param("argv").and_then(Value::as_array).map(|words| {
        let words: Vec<_> = words.iter().filter_map(Value::as_str).collect();
        words.join(" ")
    });
    let texts = ["command", "path", "source", "query", "root", "url"];
    let text = texts.iter().find_map(|name| param(name)?.as_str());
    words.or_else(|| text.map(str::to_owned)).unwrap_or_default()
}

fn shorten(text: &str) -> String {
    let text = single_line(text);
    match text.char_indices().nth(MAX_DETAIL_CHARS) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// Escapes untrusted text and joins its lines.
fn single_line(text: &str) -> String {
    escape::text(text).replace('\n', " ")
}

/// Formats a time with milliseconds.
fn format_time(time: &str) -> String {
    match (time.get(..19), time.get(19..23)) {
        (Some(seconds), Some(millis)) if millis.starts_with('.') => format!("{seconds}{millis}Z"),
        (Some(seconds), _) => format!("{seconds}Z"),
        (None, _) => single_line(time),
    }
}

#[cfg(test)]
mod tests {
    use prost_types::{Struct, Value as WireValue, value::Kind};

    use super::*;

    fn text(text: &str) -> WireValue {
        WireValue { kind: Some(Kind::StringValue(text.to_owned())) }
    }

    fn event(kind: &str, fields: impl IntoIterator<Item = (&'static str, WireValue)>) -> Event {
        let fields = fields.into_iter();
        Event {
            step: 12,
            tool: "run".to_owned(),
            r#type: kind.to_owned(),
            time: "2026-11-22T07:37:11.123456Z".parse().ok(),
            record: Some(Struct {
                fields: fields.map(|(name, value)| (name.to_owned(), value)).collect(),
            }),
            ..Event::default()
        }
    }

    fn number(number: f64) -> WireValue {
        WireValue { kind: Some(Kind::NumberValue(number)) }
    }

    fn params(command: &str) -> WireValue {
        let params = Struct { fields: [("command".to_owned(), text(command))].into() };
        WireValue { kind: Some(Kind::StructValue(params)) }
    }

    fn decided(state: &str, by: &str, more: [(&'static str, &str); 1]) -> Event {
        let fields = [("approval_id", "01A"), ("state", state), ("decided_by", by)];
        let fields = fields.into_iter().chain(more);
        event("approval_decided", fields.map(|(name, value)| (name, text(value))))
    }

    #[test]
    fn any_event_is_one_escaped_line() {
        let long = "x".repeat(500);
        for (event, expected) in [
            (
                event("tool_call_started", [("params", params("ls\n\x1b[31m"))]),
                "2026-11-22T07:37:11.123Z     12  run               started   ls \\033[31m\n",
            ),
            (
                event(
                    "tool_call_finished",
                    [
                        ("status", text("success")),
                        ("duration_sec", number(1.5)),
                        ("outcome", text("EXITED")),
                        ("exit_code", number(3.0)),
                    ],
                ),
                "2026-11-22T07:37:11.123Z     12  run               success      1.500s  exit 3\n",
            ),
            (
                event(
                    "tool_call_denied",
                    [("principal", text("key:a")), ("denied_by", text("rule:file:secrets"))],
                ),
                "2026-11-22T07:37:11.123Z     12  run               denied    call of key:a, by rule:file:secrets\n",
            ),
            (
                event(
                    "approval_requested",
                    [
                        ("approval_id", text("01A")),
                        ("principal", text("key:a")),
                        ("required_by", text("risk:dangerous")),
                        ("params", params("make\nx")),
                    ],
                ),
                "2026-11-22T07:37:11.123Z     12  run               pending   01A of key:a, required by risk:dangerous: make x\n",
            ),
            (
                decided("DENIED", "key:b", [("comment", "no")]),
                "2026-11-22T07:37:11.123Z     12  run               decided   01A denied by key:b: no\n",
            ),
            (
                decided("ALLOWED", "key:b", [("rule_id", "01R")]),
                "2026-11-22T07:37:11.123Z     12  run               decided   01A allowed by key:b, with rule 01R\n",
            ),
            (
                decided("ALLOWED", "rule:01R", [("rule_id", "01R")]),
                "2026-11-22T07:37:11.123Z     12  run               decided   01A allowed by rule:01R\n",
            ),
            (
                event("patch_applied", []),
                "2026-11-22T07:37:11.123Z     12  run               patch_applied\n",
            ),
        ] {
            assert_eq!(event_line(event), expected);
        }
        let failed = [("status", text("error")), ("message", text(&long))];
        let line = event_line(event("tool_call_finished", failed));
        assert!(line.ends_with("x…\n") && line.len() < 250, "{line}");
    }
}
