//! Tools of a configuration: what they make of parameters.

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

fn plain(path: &str) -> Option<String> {
    path.strip_prefix("./").map(str::to_owned)
}

fn given(params: Json) -> Map<String, Json> {
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
        assert_eq!(search().prepare_call(&given(params), plain).unwrap().argv, argv);
    }
}

#[test]
fn what_strict_schemas_make_of_parameters_is_read() {
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
        tool.prepare_call(&given(params), plain).unwrap().argv,
        ["x", r#"{"A":"1"}"#, r#"{"s":null}"#, r#"{"n":2,"s":"3"}"#]
    );
}

#[test]
fn all_that_is_wrong_is_told_and_what_may_be_secret_is_not() {
    let params = json!({
        "lines": 0,
        "files": ["a", 1, "c"],
        "exact": "perhaps",
        "wrod": "x",
        "key": 7,
    });
    let error = search().prepare_call(&given(params), plain).err().unwrap();
    let mut told: Vec<_> = error
        .violations
        .iter()
        .map(|violation| format!("{}: {}", violation.field, violation.description))
        .collect();
    told.sort_unstable();
    let expected = [
        "exact: must be of type boolean",
        "files: the value has more than 2 items",
        "files[1]: must be of type string",
        "key: must be of type string",
        "lines: the value is less than the minimum of 1",
        "word: must be given",
        "wrod: is not known: word was probably meant; there are exact, files, key, lines, word",
    ];
    assert_eq!(told, expected);
    for (word, part) in [
        ("-rf", "must not begin with -"),
        ("A", "the value does not match"),
        ("", "shorter than 1 character"),
    ] {
        let error = search().prepare_call(&given(json!({ "word": word })), plain).err().unwrap();
        assert!(error.to_string().contains(part), "{error}");
    }
    let files = json!({"word": "a", "files": ["x\u{0}"]});
    let error = search().prepare_call(&given(files), plain).err().unwrap();
    assert_eq!(error.violations[0].field, "files[0]");
}

#[test]
fn who_decides_is_told_all_but_secrets() {
    let call = search().prepare_call(&given(json!({"word": "a.b", "key": "s3cret"})), plain);
    assert!(call.is_err(), "a dot is not in the pattern");
    let call = search().prepare_call(&given(json!({"word": "a b"})), plain).unwrap();
    assert_eq!(call.policy_view.texts[0].text, r#"{"word":"a b"}"#);
    assert!(call.policy_view.texts[0].may_allow);
    let texts: Vec<_> = call.policy_view.texts.iter().map(|text| text.text.as_str()).collect();
    assert_eq!(texts, [r#"{"word":"a b"}"#, r#"{"lines":3,"word":"a b"}"#]);
    let params = json!({"word": "a", "lines": "2", "files": ["./x"]});
    let call = search().prepare_call(&given(params), plain).unwrap();
    let read = call.policy_view.texts.last().unwrap();
    assert_eq!(read.text, r#"{"files":["x"],"lines":2,"word":"a"}"#);
    assert!(!read.may_allow, "nothing is allowed by what was not given");
    let call = search().prepare_call(&given(json!({"word": "a b"})), plain).unwrap();
    assert_eq!(call.policy_view.pattern.unwrap(), r#"^\{"word":"a b"\}$"#);
    assert_eq!(call.recorded_params, json!({"word": "a b"}));
    let call = search().prepare_call(&given(json!({"word": "a", "key": "s3cret"})), plain);
    let call = call.unwrap();
    assert_eq!(call.policy_view.pattern, None);
    assert_eq!(call.recorded_params, json!({"word": "a", "key": "<6 bytes>"}));
    let key = call.policy_view.display_params.iter().find(|(name, _)| name == "key");
    assert_eq!(key.unwrap().1, "<6 bytes>");
}

#[test]
fn numbers_are_written_as_programs_want_them() {
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
        assert_eq!(tool.prepare_call(&given(params), plain).unwrap().argv, argv);
    }
}

#[test]
fn what_is_in_a_parameter_may_be_secret_too() {
    let schema = json!({
        "type": "object",
        "properties": {
            "user": {"type": "object", "properties": {"word": {"type": "string", "writeOnly": true}}},
        },
    });
    let tool = tool(&["x", "{user}"], schema).unwrap();
    let call = tool.prepare_call(&given(json!({"user": {"word": "s3cret"}})), plain);
    let call = call.unwrap();
    assert_eq!(call.recorded_params, json!({"user": "<17 bytes>"}));
    assert_eq!(call.policy_view.pattern, None);
    assert!(
        !format!("{:?}{}", call.policy_view.display_params, call.recorded_params)
            .contains("s3cret")
    );
}

#[test]
fn no_more_is_told_than_anybody_reads_and_looking_has_an_end() {
    let unknown: Map<_, _> = (0..5000).map(|n| (format!("unknown_{n}"), 1.into())).collect();
    let error = search().prepare_call(&unknown, plain).err().unwrap();
    assert!(error.violations.len() <= crate::daemon::error::MAX_VIOLATIONS + 1);
    let long = json!({"word": "a", "files": ["x".repeat(3 << 20)]});
    let error = search().prepare_call(&given(long), plain).err().unwrap();
    assert!(error.message.contains("may have 2097152: give less"), "{error}");
    let options = json!({"word": "a", "files": []});
    assert!(search().prepare_call(&given(options), plain).is_ok());
    // Where there is much to compare, the first that is wrong is told.
    let schema = json!({
        "type": "object",
        "properties": {"x": {"type": "array", "items": {"type": "string"}}},
    });
    let tool = tool(&["x", "{x...}"], schema).unwrap();
    let error = tool.prepare_call(&given(json!({"x": vec![1; 500_000]})), plain);
    assert_eq!(error.err().unwrap().violations.len(), 1);
    let error = tool.prepare_call(&given(json!({"x": ["a", "-b", "-c"]})), plain);
    let fields: Vec<_> = error.err().unwrap().violations;
    let fields: Vec<_> = fields.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(fields, ["x[1]", "x[2]"]);
}

#[test]
fn a_schema_that_cannot_be_used_is_told() {
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
fn numbers_arrive_as_they_were_given_or_not_at_all() {
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
        let argv = tool.prepare_call(&given(params.clone()), plain).unwrap().argv;
        assert_eq!(argv, ["x", arguments], "{params}");
    }
    for (params, field) in [
        (json!({"i": "12345678901234567890123"}), "i"),
        (json!({"i": 18_446_744_073_709_551_616.0}), "i"),
        (json!({"i": 9_007_199_254_740_993.0}), "i"),
        (json!({"list": [1, 1e30]}), "list[1]"),
    ] {
        let refused = tool.prepare_call(&given(params.clone()), plain).unwrap_err();
        let fields: Vec<_> = refused.violations.iter().map(|one| &*one.field).collect();
        assert_eq!(fields, [field], "{params}");
        assert!(refused.message.contains("too large"), "{refused:?}");
    }
}

#[test]
fn null_is_as_good_as_not_given_where_the_schema_has_none() {
    for (schema, is_left_out) in [
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
        let read = tool.read_params(&given(json!({"a": null})), 10).unwrap();
        assert_eq!(!read.contains_key("a"), is_left_out, "{schema}");
    }
}

#[test]
fn a_map_that_is_a_wrong_list_says_what_it_may_be() {
    let schema = json!({
        "type": "object",
        "properties": {"m": {"type": "object", "additionalProperties": {"type": "string"}}},
        "additionalProperties": false,
    });
    let tool = tool(&["x", "{m}"], schema).unwrap();
    let twice = json!({"m": [{"key": "a", "value": "b"}, {"key": "a", "value": "c"}]});
    let refused = tool.prepare_call(&given(twice), plain).unwrap_err();
    assert!(refused.message.contains("no key twice"), "{refused:?}");
}
