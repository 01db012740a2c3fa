//! Tools of a configuration: what they make of parameters.

use serde_json::json;

use super::*;
use crate::daemon::{catalog::Catalog, config::tools::Template};

fn template(text: &str) -> Template {
    Template::parse(text).unwrap()
}

fn tool(argv: &[&str], schema: Json) -> Result<&'static CustomTool, Vec<String>> {
    let tool = Tool {
        name: "mine".to_owned(),
        description: "Mine.".to_owned(),
        schema: schema.as_object().unwrap().clone(),
        argv: argv.iter().map(|text| template(text)).collect(),
        allow_options: false,
        risk: Risk::SafeWrite,
        timeout: None,
    };
    let catalog = Catalog::load().unwrap().with_tools(vec![tool])?;
    Ok(catalog.custom("mine").unwrap())
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
    let argv = [
        "grep",
        "-m{lines}",
        "--exact={exact}",
        "--key={key}",
        "{word}",
        "--",
        "{files...}",
    ];
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
        assert_eq!(search().call(&given(params), plain).unwrap().argv, argv);
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
        tool.call(&given(params), plain).unwrap().argv,
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
    let error = search().call(&given(params), plain).err().unwrap();
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
        let error = search()
            .call(&given(json!({ "word": word })), plain)
            .err()
            .unwrap();
        assert!(error.to_string().contains(part), "{error}");
    }
    let files = json!({"word": "a", "files": ["x\u{0}"]});
    let error = search().call(&given(files), plain).err().unwrap();
    assert_eq!(error.violations[0].field, "files");
}

#[test]
fn who_decides_is_told_all_but_secrets() {
    let call = search().call(&given(json!({"word": "a.b", "key": "s3cret"})), plain);
    assert!(call.is_err(), "a dot is not in the pattern");
    let call = search()
        .call(&given(json!({"word": "a b"})), plain)
        .unwrap();
    assert_eq!(call.told.texts[0].text, r#"{"word":"a b"}"#);
    assert!(call.told.texts[0].may_allow);
    let texts: Vec<_> = call
        .told
        .texts
        .iter()
        .map(|text| text.text.as_str())
        .collect();
    assert_eq!(texts, [r#"{"word":"a b"}"#, r#"{"lines":3,"word":"a b"}"#]);
    let params = json!({"word": "a", "lines": "2", "files": ["./x"]});
    let call = search().call(&given(params), plain).unwrap();
    let read = call.told.texts.last().unwrap();
    assert_eq!(read.text, r#"{"files":["x"],"lines":2,"word":"a"}"#);
    assert!(!read.may_allow, "nothing is allowed by what was not given");
    let call = search()
        .call(&given(json!({"word": "a b"})), plain)
        .unwrap();
    assert_eq!(call.told.pattern.unwrap(), r#"^\{"word":"a b"\}$"#);
    assert_eq!(call.shown, json!({"word": "a b"}));
    let call = search().call(&given(json!({"word": "a", "key": "s3cret"})), plain);
    let call = call.unwrap();
    assert_eq!(call.told.pattern, None);
    assert_eq!(call.shown, json!({"word": "a", "key": "<6 bytes>"}));
    let key = call.told.shown.iter().find(|(name, _)| name == "key");
    assert_eq!(key.unwrap().1, "<6 bytes>");
}

#[test]
fn a_schema_that_cannot_be_used_is_told() {
    for (schema, part) in [
        (json!({"type": "object", "required": "x"}), "schema: "),
        (
            json!({"properties": {"p": {"pattern": "("}}}),
            "properties/p/pattern",
        ),
        // Nothing is fetched.
        (
            json!({"properties": {"p": {"$ref": "http://127.0.0.1:1/schema"}}}),
            "127.0.0.1:1",
        ),
    ] {
        let problems = tool(&["true", "{p}"], schema).unwrap_err();
        assert!(problems[0].contains(part), "{problems:?}");
    }
}
