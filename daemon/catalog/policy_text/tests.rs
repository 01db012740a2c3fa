//! Views of calls for policy rules and for people.

use regex::Regex;

use crate::{api::v1, daemon::catalog::Catalog};

fn view<T: prost::Message + Default>(tool: &str, request: T) -> super::PolicyView {
    let catalog = Catalog::load().unwrap();
    let validated = catalog.tool(tool).unwrap().validate(request, true);
    validated.unwrap().explicit.unwrap().policy_view(normalize_path, None)
}

/// Normalizes these paths as a workspace does.
fn normalize_path(path: &str) -> Option<String> {
    let normalized = match path {
        "../x" => return None,
        "./prod//x" | "/workspace/prod/x" | "q/../prod/x" => "prod/x",
        "./a" => "a",
        path => path.trim_start_matches("/workspace/./"),
    };
    Some(normalized.to_owned())
}

/// The texts, each with whether a rule that allows may match it.
fn texts(view: &super::PolicyView) -> Vec<(&str, bool)> {
    view.texts.iter().map(|text| (text.text.as_str(), text.may_allow)).collect()
}

#[test]
fn view_has_canonical_text_and_display_params() {
    let view = view(
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
        view.texts[0].text,
        format!(
            r#"{{"content":"{}","file_mode":384,"mode":"CREATE_NEW","path":"a \"b\"\n{{é}}.txt"}}"#,
            "x".repeat(20)
        )
    );

    let display_params: Vec<_> =
        view.display_params.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(
        display_params,
        [
            ("path", "a \"b\"\n{é}.txt"),
            ("content", "<20 bytes>"),
            ("mode", "WRITE_MODE_CREATE_NEW"),
            ("file_mode", "384"),
        ]
    );
}

#[test]
fn pattern_matches_any_content_but_no_other_path() {
    let request = |path: &str, content: &str| v1::WriteFileRequest {
        path: path.to_owned(),
        content: content.to_owned(),
        ..v1::WriteFileRequest::default()
    };

    let first = view("write_file", request("a.*b{2} (x|y)", "one"));
    let pattern = first.pattern.unwrap();
    let regex = Regex::new(&pattern).unwrap();
    let matches = |request| regex.is_match(&view("write_file", request).texts[0].text);
    assert!(matches(request("a.*b{2} (x|y)", "one")), "{pattern}");
    assert!(matches(request("a.*b{2} (x|y)", "other \"\\ one")));
    assert!(matches(request("/workspace/./a.*b{2} (x|y)", "one")));
    assert!(!matches(request("a.*b{2} (x|y); rm", "one")));

    let run = v1::RunRequest { command: Some("x".repeat(20_000)), ..v1::RunRequest::default() };
    assert_eq!(view("run", run).pattern, None);
}

#[test]
fn secrets_are_hidden_and_prevent_a_pattern() {
    let secret = "hunter2";
    for request in [
        v1::RunRequest {
            env: [("TOKEN".to_owned(), secret.to_owned())].into(),
            ..v1::RunRequest::default()
        },
        v1::RunRequest { stdin: secret.into(), ..v1::RunRequest::default() },
    ] {
        let request = v1::RunRequest { command: Some("cat".to_owned()), ..request };
        let view = view("run", request);

        assert_eq!(view.pattern, None);
        assert!(!view.display_params.iter().any(|(_, value)| value.contains(secret)));
        assert!(view.display_params[1].1.contains("<7 bytes>"), "{:?}", view.display_params);
    }
}

#[test]
fn start_differs_from_run() {
    let catalog = Catalog::load().unwrap();
    let start = v1::StartRequest {
        command: Some("cat".to_owned()),
        cwd: Some("./a".to_owned()),
        ..v1::StartRequest::default()
    };

    let validated = catalog.validate("jig.v1.StartRequest", start, true).unwrap();
    let start = validated.explicit.unwrap().policy_view(normalize_path, None);
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
    let run = view("run", run);
    assert_eq!(texts(&run), [(r#"{"command":"cat","cwd":"a"}"#, true)]);

    let regex = Regex::new(&run.pattern.unwrap()).unwrap();
    let mut allowing = start.texts.iter().filter(|text| text.may_allow);
    assert!(allowing.all(|text| !regex.is_match(&text.text)));
}

#[test]
fn paths_match_in_normalized_form_too() {
    for (given, expected) in [
        ("prod/x", &[("prod/x", true)][..]),
        ("./prod//x", &[("prod/x", true), ("./prod//x", true)]),
        ("/workspace/prod/x", &[("prod/x", true), ("/workspace/prod/x", true)]),
        ("q/../prod/x", &[("prod/x", true), ("q/../prod/x", false)]),
        ("../x", &[("../x", true)]),
    ] {
        let request =
            v1::DeletePathRequest { path: given.to_owned(), ..v1::DeletePathRequest::default() };
        let view = view("delete_path", request);
        let expected: Vec<_> = expected
            .iter()
            .map(|(path, may_allow)| (format!(r#"{{"path":"{path}"}}"#), *may_allow))
            .collect();
        let actual: Vec<_> = texts(&view)
            .into_iter()
            .map(|(text, may_allow)| (text.to_owned(), may_allow))
            .collect();
        assert_eq!(actual, expected);
    }
}

#[test]
fn pattern_of_an_upload_matches_any_content() {
    let catalog = Catalog::load().unwrap();
    let view = |sum: &str, size_bytes| {
        let start = v1::UploadStart {
            path: "a".to_owned(),
            size_bytes,
            sha256: sum.to_owned(),
            ..v1::UploadStart::default()
        };
        let explicit = catalog.explicit_params("jig.v1.UploadStart", &start).unwrap();
        explicit.policy_view(normalize_path, None)
    };

    let first = view("abc", 3);
    assert_eq!(first.texts[0].text, r#"{"path":"a","sha256":"abc","size_bytes":3}"#);
    assert_eq!(first.display_params[1], ("size_bytes".to_owned(), "3".to_owned()));

    let regex = Regex::new(&first.pattern.unwrap()).unwrap();
    assert!(regex.is_match(&view("def", 4000).texts[0].text));
}

#[test]
fn canonical_text_is_matched_by_rules_that_deny() {
    let view = |has_parent_component| {
        let request = v1::ApplyPatchRequest {
            unified_diff: "given".to_owned(),
            ..v1::ApplyPatchRequest::default()
        };
        let catalog = Catalog::load().unwrap();
        let validated = catalog.tool("apply_patch").unwrap().validate(request, true);
        let canonical = super::CanonicalText {
            field: "unified_diff",
            text: "read".to_owned(),
            has_parent_component,
        };
        let explicit = validated.unwrap().explicit.unwrap();
        explicit.policy_view(normalize_path, Some(canonical))
    };

    for has_parent_component in [false, true] {
        let view = view(has_parent_component);
        let expected = [
            (r#"{"unified_diff":"given"}"#, !has_parent_component),
            (r#"{"unified_diff":"read"}"#, false),
        ];
        assert_eq!(texts(&view), expected);
        assert_eq!(view.pattern.is_some(), !has_parent_component);
    }
}
