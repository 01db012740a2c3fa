//! Each parameter value becomes a single argument, never text that a shell parses.

use std::fs;

use jig::api::v1::{InvokeRequest, InvokeStatus, Outcome};
use serde_json::json;

use super::{invoke_failing, invoke_stdout, read_note, start_with_tools, stdout};
use crate::{
    invoke::{call, invoke, json_of},
    support::with_metadata,
};

#[tokio::test]
async fn b9_parameters_become_single_arguments() {
    let daemon = start_with_tools().await;
    for (params, lines) in [
        (json!({"word": "a"}), vec!["first=a", "--", "a", "n7", "{word}"]),
        (
            json!({"word": "a b", "rest": ["-x", "", "$(id) `id` ; \"'\\\n*"], "number": "12"}),
            vec!["first=a b", "--", "a b", "-x", "", "$(id) `id` ; \"'\\\n*", "n12", "{word}"],
        ),
        // Braces in a parameter value are literal.
        (
            json!({"word": "{number}", "rest": null, "number": 0}),
            vec!["first={number}", "--", "{number}", "n0", "{word}"],
        ),
        (
            json!({"word": "\u{e9}\u{4e16}\u{1f600}"}),
            vec!["first=\u{e9}\u{4e16}\u{1f600}", "--", "\u{e9}\u{4e16}\u{1f600}", "n7", "{word}"],
        ),
    ] {
        let expected: String = lines.iter().map(|line| format!("<{line}>\n")).collect();
        assert_eq!(invoke_stdout(&daemon, "say_arguments", params).await, expected);
    }
}

#[tokio::test]
async fn b9_struct_numbers_format_like_json_numbers() {
    let daemon = start_with_tools().await;
    let number = |number: f64| prost_types::Value {
        kind: Some(prost_types::value::Kind::NumberValue(number)),
    };
    let word =
        prost_types::Value { kind: Some(prost_types::value::Kind::StringValue("w".to_owned())) };
    let fields = [("number".to_owned(), number(42.0)), ("word".to_owned(), word)];
    let request = InvokeRequest {
        tool: "say_arguments".to_owned(),
        params: Some(prost_types::Struct { fields: fields.into() }),
        ..InvokeRequest::default()
    };
    let response = invoke(&daemon, request).await;
    assert!(stdout(&response).contains("<n42>"), "{response:?}");
}

#[tokio::test]
async fn b9_error_names_the_parameter_with_too_many_arguments() {
    let daemon = start_with_tools().await;
    let params = json!({"word": "w", "rest": vec!["a"; 70_000]});
    let (reason, fields) = invoke_failing(&daemon, "say_arguments", params).await;
    let [(field, text)] = fields.as_slice() else {
        panic!("{fields:?}");
    };
    assert_eq!((reason.as_str(), field.as_str()), ("invalid_params", "rest"));
    assert!(text.contains("give less"), "{text}");
}

#[tokio::test]
async fn b9_daemon_reports_all_invalid_parameters_and_runs_nothing() {
    let daemon = start_with_tools().await;
    for (tool, params, expected) in [
        ("say_arguments", json!({}), vec![("word", "is required")]),
        ("say_arguments", json!({"word": null}), vec![("word", "is required")]),
        (
            "say_arguments",
            json!({"wrod": "x", "word": 5, "number": -1, "rest": ["a", 2]}),
            vec![
                ("number", "less than the minimum of 0"),
                ("rest[1]", "must be of type string"),
                ("word", "must be of type string"),
                ("wrod", "did you mean word?"),
            ],
        ),
        (
            "say_arguments",
            json!({"word": "x".repeat(101)}),
            vec![("word", "longer than 100 characters")],
        ),
        (
            "grep_word",
            json!({"word": "--file=/etc/passwd", "file": "-r"}),
            vec![("word", "must not begin with -"), ("file", "must not begin with -")],
        ),
        (
            "grep_word",
            json!({"word": "a\u{0}b", "file": "x".repeat(131_072)}),
            vec![("word", "NUL"), ("file", "longer than 131071 bytes")],
        ),
    ] {
        let (reason, fields) = invoke_failing(&daemon, tool, params.clone()).await;
        assert_eq!(reason, "invalid_params", "{params}");

        let mut fields = fields;
        let mut expected = expected;
        fields.sort_unstable();
        expected.sort_unstable();
        assert_eq!(fields.len(), expected.len(), "{fields:?}");

        for ((field, text), (name, part)) in fields.iter().zip(expected) {
            assert!(field == name && text.contains(part), "{field}: {text}");
        }
    }

    let events = daemon.state_dir().join("sessions/default/events.jsonl");
    assert!(!fs::exists(events).unwrap(), "no event is recorded");
}

#[tokio::test]
async fn b9_tool_runs_in_the_sandbox() {
    let daemon = start_with_tools().await;
    fs::write(daemon.workspace().join("a.txt"), "one\ntwo\n").unwrap();
    let params = json!({"word": "two", "file": "a.txt"});
    assert_eq!(invoke_stdout(&daemon, "grep_word", params).await, "2:two\n");

    // A nonzero exit code is a result of the tool.
    let params = json!({"word": "three", "file": "a.txt"});
    let response = invoke(&daemon, call("", "grep_word", params)).await;
    assert_eq!(response.status(), InvokeStatus::Success);
    assert_eq!(response.exit_code, Some(1));
    assert_eq!(response.error.unwrap().error_type, "abnormal_exit");

    let params = json!({"note": "-n; rm -rf /", "key": "s3cret"});
    let uid = invoke_stdout(&daemon, "leave_note", params).await;
    assert_ne!(uid.trim(), "0", "the tool does not run as root");
    assert_eq!(read_note(&daemon), "-n; rm -rf /");

    let params = json!({"word": "root", "file": "/etc/shadow"});
    let response = invoke(&daemon, call("", "grep_word", params)).await;
    assert_eq!((response.exit_code, stdout(&response)), (Some(2), String::new()));
}

#[tokio::test]
async fn b9_tool_has_its_own_timeout() {
    let daemon = start_with_tools().await;
    let response = invoke(&daemon, call("", "take_long", json!({}))).await;
    assert_eq!(response.status(), InvokeStatus::Success, "{response:?}");
    let data = json_of(response.data.as_ref().unwrap());
    assert_eq!(data["outcome"], Outcome::TimedOut.as_str_name());
    assert!(response.duration_sec < 100.0);
    assert_eq!(response.error.unwrap().error_type, "abnormal_exit");
}

#[tokio::test]
async fn b9_repeated_call_runs_once() {
    let daemon = start_with_tools().await;
    for _ in 0..3 {
        let request = call("", "leave_note", json!({"note": "x"}));
        let response = invoke(&daemon, with_metadata("jig-request-id", "note-1", request)).await;
        assert_eq!(response.status(), InvokeStatus::Success, "{response:?}");
    }
    assert_eq!(read_note(&daemon), "x");
}
