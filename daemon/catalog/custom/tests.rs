//! Parameters of custom tools: validation, arguments, policy texts and records.

use serde_json::json;

use super::*;
use crate::daemon::{
    catalog::Catalog,
    config::tools::{ArgTemplate, ToolSchema},
};

fn template(text: &str) -> ArgTemplate {
    ArgTemplate::parse(text).unwrap()
}

fn tool(argv: &[&str], schema: Json) -> Result<&'static CustomTool, Vec<String>> {
    let tool = ToolConfig {
        name: "mine".to_owned(),
        description: "Mine.".to_owned(),
        schema: ToolSchema { fields: schema.as_object().unwrap().clone(), validation_cost: 10 },
        argv: argv.iter().map(|text| template(text)).collect(),
        allow_options: false,
        risk: ToolRisk::SafeWrite,
        timeout: None,
    };
    let catalog = Catalog::load().unwrap().with_custom_tools(vec![tool])?;
    Ok(catalog.custom_tool("mine").unwrap())
}

fn search() -> &'static CustomTool {
    let schema = json!({
        "type": "object",
        "properties": {
            "word": {"type": "string", "minLength": 1, "pattern": "^[a-z -]+$"},
            "lines": {"type": "integer", "minimum": 1, "default": 3},
            "files": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
            "exact": {"type": "boolean"},
            "key": {"type": "string", "writeOnly": true},
        },
        "required": ["word"],
        "additionalProperties": false,
    });
    let argv =
        ["grep", "-m{lines}", "--exact={exact}", "--key={key}", "{word}", "--", "{files...}"];
    tool(&argv, schema).unwrap()
}

fn normalize_path(path: &str) -> Option<String> {
    path.strip_prefix("./").map(str::to_owned)
}

fn params_map(params: Json) -> Map<String, Json> {
    params.as_object().unwrap().clone()
}

#[test]
fn parameters_become_arguments() {
    for (params, argv) in [
        (json!({"word": "a b"}), vec!["grep", "-m3", "a b", "--"]),
        (
            json!({"word": "a", "lines": "7", "exact": "true", "key": null, "files": ["-x", "y z"]}),
            vec!["grep", "-m7", "--exact=true", "a", "--", "-x", "y z"],
        ),
    ] {
        assert_eq!(search().prepare_call(&params_map(params), normalize_path).unwrap().argv, argv);
    }
}

#[test]
fn forms_of_strict_schemas_are_accepted() {
    let schema = json!({
        "type": "object",
        "properties": {
            "env": {"type": "object", "additionalProperties": {"type": "string"}},
            "rows": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"n": {"type": "integer"}, "s": {"type": ["string", "null"]}},
                    "additionalProperties": false,
                },
            },
        },
    });
    let tool = tool(&["x", "{env}", "{rows...}"], schema).unwrap();
    let params = json!({
        "env": [{"key": "A", "value": "1"}],
        "rows": [{"n": null, "s": null}, {"n": "2", "s": "3"}],
    });
    assert_eq!(
        tool.prepare_call(&params_map(params), normalize_path).unwrap().argv,
        ["x", r#"{"A":"1"}"#, r#"{"s":null}"#, r#"{"n":2,"s":"3"}"#]
    );
}

#[test]
fn all_violations_are_reported_without_secrets() {
    let params = json!({
        "lines": 0,
        "files": ["a", 1, "c"],
        "exact": "perhaps",
        "wrod": "x",
        "key": 7,
    });
    let error = search().prepare_call(&params_map(params), normalize_path).err().unwrap();

    let mut violations: Vec<_> = error
        .violations
        .iter()
        .map(|violation| format!("{}: {}", violation.field, violation.description))
        .collect();
    violations.sort_unstable();
    let expected = [
        "exact: must be of type boolean",
        "files: the value has more than 2 items",
        "files[1]: must be of type string",
        "key: must be of type string",
        "lines: the value is less than the minimum of 1",
        "word: is required",
        "wrod: is unknown: did you mean word? Known: exact, files, key, lines, word",
    ];
    assert_eq!(violations, expected);

    for (word, part) in [
        ("-rf", "must not begin with -"),
        ("A", "the value does not match"),
        ("", "shorter than 1 character"),
    ] {
        let error = search()
            .prepare_call(&params_map(json!({ "word": word })), normalize_path)
            .err()
            .unwrap();
        assert!(error.to_string().contains(part), "{error}");
    }
    let files = json!({"word": "a", "files": ["x\u{0}"]});
    let error = search().prepare_call(&params_map(files), normalize_path).err().unwrap();
    assert_eq!(error.violations[0].field, "files[0]");
}

#[test]
fn policy_view_and_record_hide_secrets() {
    let call =
        search().prepare_call(&params_map(json!({"word": "a.b", "key": "s3cret"})), normalize_path);
    assert!(call.is_err(), "a dot is not in the pattern");

    let call = search().prepare_call(&params_map(json!({"word": "a b"})), normalize_path).unwrap();
    assert_eq!(call.policy_view.texts[0].text, r#"{"word":"a b"}"#);
    assert!(call.policy_view.texts[0].may_allow);
    let texts: Vec<_> = call.policy_view.texts.iter().map(|text| text.text.as_str()).collect();
    assert_eq!(texts, [r#"{"word":"a b"}"#, r#"{"lines":3,"word":"a b"}"#]);

    let params = json!({"word": "a", "lines": "2", "files": ["./x"]});
    let call = search().prepare_call(&params_map(params), normalize_path).unwrap();
    let read = call.policy_view.texts.last().unwrap();
    assert_eq!(read.text, r#"{"files":["x"],"lines":2,"word":"a"}"#);
    assert!(!read.may_allow, "defaults must not make a rule allow");
    let call = search().prepare_call(&params_map(json!({"word": "a b"})), normalize_path).unwrap();
    assert_eq!(call.policy_view.pattern.unwrap(), r#"^\{"word":"a b"\}$"#);
    assert_eq!(call.recorded_params, json!({"word": "a b"}));

    let call = search()
        .prepare_call(&params_map(json!({"word": "a", "key": "s3cret"})), normalize_path)
        .unwrap();
    assert_eq!(call.policy_view.pattern, None);
    assert_eq!(call.recorded_params, json!({"word": "a", "key": "<6 bytes>"}));
    let key = call.policy_view.display_params.iter().find(|(name, _)| name == "key");
    assert_eq!(key.unwrap().1, "<6 bytes>");
}

#[test]
fn numbers_are_written_without_a_zero_fraction() {
    let schema = json!({
        "type": "object",
        "properties": {
            "n": {"type": "number"},
            "m": {"type": "object", "additionalProperties": {"type": "integer"}},
            "o": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["o"],
    });
    let tool = tool(&["x", "{n}", "{m}", "o{o}"], schema).unwrap();

    for (params, argv) in [
        (json!({"n": 5.0, "m": {"a": "5"}, "o": "x"}), vec!["x", "5", r#"{"a":5}"#, "ox"]),
        (json!({"n": "1e2", "o": null}), vec!["x", "100"]),
        (json!({"n": 0.5, "o": "y"}), vec!["x", "0.5", "oy"]),
    ] {
        assert_eq!(tool.prepare_call(&params_map(params), normalize_path).unwrap().argv, argv);
    }
}

#[test]
fn parameter_with_a_nested_secret_is_hidden() {
    let schema = json!({
        "type": "object",
        "properties": {
            "user": {"type": "object", "properties": {"word": {"type": "string", "writeOnly": true}}},
        },
    });
    let tool = tool(&["x", "{user}"], schema).unwrap();

    let call = tool
        .prepare_call(&params_map(json!({"user": {"word": "s3cret"}})), normalize_path)
        .unwrap();

    assert_eq!(call.recorded_params, json!({"user": "<17 bytes>"}));
    assert_eq!(call.policy_view.pattern, None);
    assert!(
        !format!("{:?}{}", call.policy_view.display_params, call.recorded_params)
            .contains("s3cret")
    );
}

#[test]
fn violations_and_validation_work_are_limited() {
    let unknown: Map<_, _> = (0..5000).map(|n| (format!("unknown_{n}"), 1.into())).collect();
    let error = search().prepare_call(&unknown, normalize_path).err().unwrap();
    assert!(error.violations.len() <= crate::daemon::error::MAX_VIOLATIONS + 1);

    let long = json!({"word": "a", "files": ["x".repeat(3 << 20)]});
    let error = search().prepare_call(&params_map(long), normalize_path).err().unwrap();
    assert!(error.message.contains("at most 2097152 are allowed: give less"), "{error}");
    let options = json!({"word": "a", "files": []});
    assert!(search().prepare_call(&params_map(options), normalize_path).is_ok());

    // Expensive validation reports only the first violation.
    let schema = json!({
        "type": "object",
        "properties": {"x": {"type": "array", "items": {"type": "string"}}},
    });
    let tool = tool(&["x", "{x...}"], schema).unwrap();
    let error = tool.prepare_call(&params_map(json!({"x": vec![1; 500_000]})), normalize_path);
    assert_eq!(error.err().unwrap().violations.len(), 1);

    let error = tool.prepare_call(&params_map(json!({"x": ["a", "-b", "-c"]})), normalize_path);
    let violations = error.err().unwrap().violations;
    let fields: Vec<_> = violations.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(fields, ["x[1]", "x[2]"]);
}

#[test]
fn unusable_schema_is_reported() {
    for (schema, part) in [
        (json!({"type": "object", "required": "x"}), "schema.required: "),
        (json!({"properties": {"p": {"pattern": "("}}}), "schema.properties.p.pattern: "),
        (
            json!({"properties": {"p": {"type": "integer", "default": "x"}}}),
            "properties.p: its default",
        ),
    ] {
        let problems = tool(&["true", "{p}"], schema).unwrap_err();
        assert!(problems[0].contains(part), "{problems:?}");
    }
}

#[test]
fn numbers_are_passed_exactly_or_rejected() {
    let schema = json!({
        "type": "object",
        "properties": {
            "i": {"type": "integer"},
            "n": {"type": "number"},
            "any": {},
            "list": {"type": "array", "items": {"type": "integer"}},
        },
        "additionalProperties": false,
    });
    let tool = tool(&["x", "--i={i}", "--n={n}", "--any={any}", "--list={list}"], schema).unwrap();
    for (params, arguments) in [
        (json!({"i": " +07 "}), "--i=7"),
        (json!({"i": "2.0"}), "--i=2"),
        (json!({"i": u64::MAX}), "--i=18446744073709551615"),
        (json!({"i": i64::MIN.to_string()}), "--i=-9223372036854775808"),
        (json!({"n": "1e2"}), "--n=100"),
        (json!({"n": 2.5}), "--n=2.5"),
        (json!({"any": {"b": 1e2}}), "--any={\"b\":100}"),
    ] {
        let argv = tool.prepare_call(&params_map(params.clone()), normalize_path).unwrap().argv;
        assert_eq!(argv, ["x", arguments], "{params}");
    }
    for (params, field) in [
        (json!({"i": "12345678901234567890123"}), "i"),
        (json!({"i": 18_446_744_073_709_551_616.0}), "i"),
        (json!({"i": 9_007_199_254_740_993.0}), "i"),
        (json!({"list": [1, 1e30]}), "list[1]"),
    ] {
        let error = tool.prepare_call(&params_map(params.clone()), normalize_path).unwrap_err();
        let fields: Vec<_> = error.violations.iter().map(|one| &*one.field).collect();
        assert_eq!(fields, [field], "{params}");
        assert!(error.message.contains("at most 64 bits"), "{error:?}");
    }
}

#[test]
fn null_counts_as_missing_unless_the_schema_allows_it() {
    for (schema, is_missing) in [
        (json!({"enum": ["a"]}), true),
        (json!({"enum": ["a", null]}), false),
        (json!({"const": 1}), true),
        (json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}), true),
        (json!({"oneOf": [{"type": "string"}, {"type": "null"}]}), false),
        (json!({"allOf": [{"minLength": 1}, {"type": "string"}]}), true),
        (json!({"type": ["string", "null"]}), false),
        (json!({}), false),
    ] {
        let whole =
            json!({"type": "object", "properties": {"a": schema}, "additionalProperties": false});
        let tool = tool(&["x", "--a={a}"], whole).unwrap();
        let read = tool.read_params(&params_map(json!({"a": null})), 10).unwrap();
        assert_eq!(!read.contains_key("a"), is_missing, "{schema}");
    }
}

#[test]
fn wrong_list_for_a_map_reports_the_accepted_forms() {
    let schema = json!({
        "type": "object",
        "properties": {"m": {"type": "object", "additionalProperties": {"type": "string"}}},
        "additionalProperties": false,
    });
    let tool = tool(&["x", "{m}"], schema).unwrap();
    let twice = json!({"m": [{"key": "a", "value": "b"}, {"key": "a", "value": "c"}]});
    let error = tool.prepare_call(&params_map(twice), normalize_path).unwrap_err();
    assert!(error.message.contains("no key twice"), "{error:?}");
}
