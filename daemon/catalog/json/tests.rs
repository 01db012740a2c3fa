//! Reads valid parameters, and reports everything that is wrong with invalid ones.

use prost::Message as _;
use prost_reflect::DescriptorPool;
use serde_json::json;

use super::*;
use crate::api::{self, v1};

fn descriptor(name: &str) -> MessageDescriptor {
    let pool = DescriptorPool::decode(api::FILE_DESCRIPTOR_SET).unwrap();
    pool.get_message_by_name(&format!("jig.v1.{name}")).unwrap()
}

fn parse(name: &str, json: Json) -> Result<DynamicMessage, Vec<(String, String)>> {
    let Json::Object(fields) = json else { panic!("an object") };
    let pool = DescriptorPool::decode(api::FILE_DESCRIPTOR_SET).unwrap();
    let rules = MessageRules::from_descriptor(&pool, &descriptor(name));
    read(&rules, &fields).map_err(|violations| {
        violations.into_iter().map(|violation| (violation.field, violation.description)).collect()
    })
}

#[test]
fn valid_parameters_become_a_message() {
    let message = parse(
        "RunRequest",
        json!({
            "argv": ["a", "b"],
            "env": {"K": "V"},
            "stdin": "aGk",
            "timeout_sec": "7",
            "maxOutputBytes": 5.0,
            "cwd": null,
            "limits": {"memory_bytes": 1 << 30},
        }),
    );
    let run: v1::RunRequest = message.unwrap().transcode_to().unwrap();
    assert_eq!(run.argv, ["a", "b"]);
    assert_eq!(run.env.get("K").map(String::as_str), Some("V"));
    assert_eq!(&*run.stdin, b"hi");
    assert_eq!((run.timeout_sec, run.max_output_bytes), (Some(7), Some(5)));
    assert_eq!(run.cwd, None);
    assert_eq!(run.limits.unwrap().memory_bytes, Some(1 << 30));

    for mode in [
        json!("CREATE_NEW"),
        json!("create_new"),
        json!("WRITE_MODE_CREATE_NEW"),
        json!(v1::WriteMode::CreateNew as i32),
    ] {
        let message = parse("WriteFileRequest", json!({"mode": mode})).unwrap();
        let write: v1::WriteFileRequest = message.transcode_to().unwrap();
        assert_eq!(write.mode(), v1::WriteMode::CreateNew, "{mode}");
    }

    for mode in [json!("WRITE_MODE_UNSPECIFIED"), json!(0)] {
        let message = parse("WriteFileRequest", json!({"mode": mode})).unwrap();
        let write: v1::WriteFileRequest = message.transcode_to().unwrap();
        assert_eq!(write.mode, None, "{mode}");
    }
}

#[test]
fn reader_stops_at_the_limit_of_violations() {
    for json in [
        json!({"argv": vec![1; 1_000_000]}),
        json!({"env": (0..100_000).map(|n| (n.to_string(), json!(n))).collect::<Map<_, _>>()}),
        Json::Object((0..100_000).map(|n| (n.to_string(), json!(n))).collect()),
    ] {
        let problems = parse("RunRequest", json).unwrap_err();
        assert_eq!(problems.len(), MAX_VIOLATIONS + 1);
    }
}

#[test]
fn all_misfits_are_reported() {
    let problems = parse(
        "RunRequest",
        json!({
            "comand": "x",
            "argv": ["a", 1],
            "env": {"K": {}},
            "stdin": "?",
            "timeout_sec": -1,
            "timeoutSec": 5,
            "max_output_bytes": 1.5,
            "cwd": ["secret"],
            "limits": {"memory": 1, "cpu_sec": "x"},
        }),
    );

    let problems = problems.unwrap_err();
    let fields: Vec<_> = problems.iter().map(|(field, _)| &**field).collect();
    let expected = [
        "argv[1]",
        "comand",
        "cwd",
        "env[\"K\"]",
        "limits.cpu_sec",
        "limits.memory",
        "max_output_bytes",
        "stdin",
        "timeout_sec",
    ];
    assert_eq!(fields, expected, "{problems:#?}");
    let text = format!("{problems:?}");
    assert!(text.contains("command, ") && !text.contains("secret"), "{text}");

    let twice = parse("RunRequest", json!({"timeout_sec": 1, "timeoutSec": 5}));
    assert_eq!(twice.unwrap_err().len(), 1);
    for mode in [json!("NONSENSE"), json!(99), json!(-1)] {
        let unknown = parse("WriteFileRequest", json!({"mode": mode})).unwrap_err();
        assert!(unknown.first().unwrap().1.contains("OVERWRITE, "), "{unknown:?}");
    }
}

#[test]
fn written_messages_have_zeros_and_no_absent_fields() {
    let response = v1::RunResponse { stdout_bytes: 5, ..v1::RunResponse::default() };
    let bytes = response.encode_to_vec();
    let message = DynamicMessage::decode(descriptor("RunResponse"), &*bytes).unwrap();
    let json = Json::Object(write(&message).unwrap());
    assert_eq!(json["stdout_bytes"], 5);
    assert_eq!(json["stdout_truncated"], false);
    assert_eq!(json.get("exit_code"), None);
    assert_eq!(json.get("usage"), None);

    let response = v1::ReadNotebookResponse {
        cells: vec![v1::NotebookCell::default()],
        ..v1::ReadNotebookResponse::default()
    };
    let bytes = response.encode_to_vec();
    let message = DynamicMessage::decode(descriptor("ReadNotebookResponse"), &*bytes).unwrap();
    let cell = &Json::Object(write(&message).unwrap())["cells"][0];
    assert_eq!((&cell["index"], cell.get("execution_count")), (&json!(0), None));
}

#[test]
fn misfits_and_broken_rules_are_reported_together() {
    let problems = |name, json| parse(name, json).unwrap_err();
    let violation = |field: &str, text: &str| (field.to_owned(), text.to_owned());
    assert_eq!(
        problems("ReadFileRequest", json!({"start_line": "x", "end_line": 0, "max_bytes": -1})),
        [
            violation("max_bytes", "is -1; it must be a whole number from 1 to 10485760"),
            violation(
                "start_line",
                "must be a whole number from 1 to 4294967295; this is a string"
            ),
            violation("path", "is required"),
            violation("end_line", "is 0; it must be at least 1"),
        ]
    );

    // No violation of rules for a field that is missing because of a misfit within it.
    let edits = json!({"path": "a", "edits": [{"old_string": 1}]});
    let problems = problems("EditFileRequest", edits);
    assert_eq!(problems, [violation("edits[0].old_string", "must be a string; this is a number")]);
}
