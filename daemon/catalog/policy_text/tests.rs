//! What is told of calls, to rules and to people.

use regex::Regex;

use crate::{api::v1, daemon::catalog::Catalog};

fn told<T: prost::Message + Default>(tool: &str, request: T) -> super::PolicyView {
    let catalog = Catalog::load().unwrap();
    let checked = catalog.tool(tool).unwrap().validate(request, true);
    checked.unwrap().explicit.unwrap().policy_view(plain, None)
}

/// What a workspace makes of these paths.
fn plain(path: &str) -> Option<String> {
    let plain = match path {
        "../x" => return None,
        "./prod//x" | "/workspace/prod/x" | "q/../prod/x" => "prod/x",
        "./a" => "a",
        path => path.trim_start_matches("/workspace/./"),
    };
    Some(plain.to_owned())
}

/// The texts, with whether a rule that allows may go by each.
fn texts(told: &super::PolicyView) -> Vec<(&str, bool)> {
    let texts = told.texts.iter();
    texts.map(|text| (text.text.as_str(), text.may_allow)).collect()
}

#[test]
fn parameters_are_told_as_rules_want_them() {
    let told = told(
        "write_file",
        v1::WriteFileRequest {
            path: "a \"b\"\n{é}.txt".to_owned(),
            content: "x".repeat(20),
            mode: Some(v1::WriteMode::CreateNew.into()),
            file_mode: Some(0o600),
            ..v1::WriteFileRequest::default()
        },
    );
    assert_eq!(
        told.texts[0].text,
        format!(
            r#"{{"content":"{}","file_mode":384,"mode":"CREATE_NEW","path":"a \"b\"\n{{é}}.txt"}}"#,
            "x".repeat(20)
        )
    );
    let shown: Vec<_> =
        told.display_params.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(
        shown,
        [
            ("path", "a \"b\"\n{é}.txt"),
            ("content", "<20 bytes>"),
            ("mode", "WRITE_MODE_CREATE_NEW"),
            ("file_mode", "384"),
        ]
    );
}

#[test]
fn the_pattern_matches_the_call_and_those_with_other_content() {
    let request = |path: &str, content: &str| v1::WriteFileRequest {
        path: path.to_owned(),
        content: content.to_owned(),
        ..v1::WriteFileRequest::default()
    };
    let first = told("write_file", request("a.*b{2} (x|y)", "one"));
    let pattern = first.pattern.unwrap();
    let regex = Regex::new(&pattern).unwrap();
    let is_like = |request| regex.is_match(&told("write_file", request).texts[0].text);
    assert!(is_like(request("a.*b{2} (x|y)", "one")), "{pattern}");
    assert!(is_like(request("a.*b{2} (x|y)", "other \"\\ one")));
    assert!(is_like(request("/workspace/./a.*b{2} (x|y)", "one")));
    assert!(!is_like(request("a.*b{2} (x|y); rm", "one")));
    let run = v1::RunRequest { command: Some("x".repeat(20_000)), ..v1::RunRequest::default() };
    assert_eq!(told("run", run).pattern, None);
}

#[test]
fn what_may_be_secret_is_not_shown_and_no_pattern_leaves_it_open() {
    let secret = "hunter2";
    for request in [
        v1::RunRequest {
            env: [("TOKEN".to_owned(), secret.to_owned())].into(),
            ..v1::RunRequest::default()
        },
        v1::RunRequest { stdin: secret.into(), ..v1::RunRequest::default() },
    ] {
        let request = v1::RunRequest { command: Some("cat".to_owned()), ..request };
        let told = told("run", request);
        assert_eq!(told.pattern, None);
        assert!(!told.display_params.iter().any(|(_, value)| value.contains(secret)));
        assert!(told.display_params[1].1.contains("<7 bytes>"), "{:?}", told.display_params);
    }
}

#[test]
fn a_start_is_told_from_a_run() {
    let catalog = Catalog::load().unwrap();
    let start = v1::StartRequest {
        command: Some("cat".to_owned()),
        cwd: Some("./a".to_owned()),
        ..v1::StartRequest::default()
    };
    let checked = catalog.validate("jig.v1.StartRequest", start, true).unwrap();
    let start = checked.explicit.unwrap().policy_view(plain, None);
    assert_eq!(
        texts(&start),
        [
            (r#"{"command":"cat","cwd":"a","on_disconnect":"KILL"}"#, true),
            (r#"{"command":"cat","cwd":"./a","on_disconnect":"KILL"}"#, true),
            (r#"{"command":"cat","cwd":"./a"}"#, false),
            (r#"{"command":"cat","cwd":"a"}"#, false),
        ]
    );
    let run = v1::RunRequest {
        command: Some("cat".to_owned()),
        cwd: Some("a".to_owned()),
        ..v1::RunRequest::default()
    };
    let run = told("run", run);
    assert_eq!(texts(&run), [(r#"{"command":"cat","cwd":"a"}"#, true)]);
    let regex = Regex::new(&run.pattern.unwrap()).unwrap();
    let mut allowing = start.texts.iter().filter(|text| text.may_allow);
    assert!(allowing.all(|text| !regex.is_match(&text.text)));
}

#[test]
fn paths_are_told_without_detours_too() {
    for (given, expected) in [
        ("prod/x", &[("prod/x", true)][..]),
        ("./prod//x", &[("prod/x", true), ("./prod//x", true)]),
        ("/workspace/prod/x", &[("prod/x", true), ("/workspace/prod/x", true)]),
        ("q/../prod/x", &[("prod/x", true), ("q/../prod/x", false)]),
        ("../x", &[("../x", true)]),
    ] {
        let request =
            v1::DeletePathRequest { path: given.to_owned(), ..v1::DeletePathRequest::default() };
        let told = told("delete_path", request);
        let expected: Vec<_> = expected
            .iter()
            .map(|(path, may_allow)| (format!(r#"{{"path":"{path}"}}"#), *may_allow))
            .collect();
        let found: Vec<_> = texts(&told)
            .into_iter()
            .map(|(text, may_allow)| (text.to_owned(), may_allow))
            .collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn the_pattern_of_an_upload_is_for_any_content() {
    let catalog = Catalog::load().unwrap();
    let told = |sum: &str, size_bytes| {
        let start = v1::UploadStart {
            path: "a".to_owned(),
            size_bytes,
            sha256: sum.to_owned(),
            ..v1::UploadStart::default()
        };
        let given = catalog.explicit_params("jig.v1.UploadStart", &start).unwrap();
        given.policy_view(plain, None)
    };
    let first = told("abc", 3);
    assert_eq!(first.texts[0].text, r#"{"path":"a","sha256":"abc","size_bytes":3}"#);
    assert_eq!(first.display_params[1], ("size_bytes".to_owned(), "3".to_owned()));
    let regex = Regex::new(&first.pattern.unwrap()).unwrap();
    assert!(regex.is_match(&told("def", 4000).texts[0].text));
}

#[test]
fn what_a_text_reads_is_told_to_those_who_deny() {
    let told = |leads_back| {
        let request = v1::ApplyPatchRequest {
            unified_diff: "given".to_owned(),
            ..v1::ApplyPatchRequest::default()
        };
        let catalog = Catalog::load().unwrap();
        let checked = catalog.tool("apply_patch").unwrap().validate(request, true);
        let reading = super::CanonicalText {
            field: "unified_diff",
            text: "read".to_owned(),
            has_parent_component: leads_back,
        };
        let given = checked.unwrap().explicit.unwrap();
        given.policy_view(plain, Some(reading))
    };
    for leads_back in [false, true] {
        let told = told(leads_back);
        let expected =
            [(r#"{"unified_diff":"given"}"#, !leads_back), (r#"{"unified_diff":"read"}"#, false)];
        assert_eq!(texts(&told), expected);
        assert_eq!(told.pattern.is_some(), !leads_back);
    }
}
