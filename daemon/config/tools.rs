//! The `[[tools]]` tables: custom tools that run a command.
//!
//! This module does not check whether validators and vendors accept the schemas, or whether other
//! tools have the same names. The catalog does.

mod schema;
mod template;

use std::{collections::HashSet, path::Path, time::Duration};

use serde_json::{Map, Value as Json};

pub(crate) use self::{schema::ToolSchema, template::ArgTemplate};
use super::{duration::parse_duration, file};

/// Each request to a model contains all tools, and models confuse tools long before this number.
const MAX_TOOLS: usize = 256;
/// Size of a tool name that all vendors accept.
const MAX_TOOL_NAME_BYTES: usize = 64;
/// Each request to a model contains the descriptions of all tools.
const MAX_DESCRIPTION_BYTES: usize = 8192;
const MAX_COMMAND_ARGUMENTS: usize = 1024;
/// Size of an argument that the kernel accepts (`MAX_ARG_STRLEN`, which includes the NUL).
pub(crate) const MAX_ARGUMENT_BYTES: usize = (128 << 10) - 1;
/// Programs that execute the argument after an option with this letter as code.
const INTERPRETERS: [(&str, char); 21] = [
    ("ash", 'c'),
    ("bash", 'c'),
    ("busybox", 'c'),
    ("csh", 'c'),
    ("dash", 'c'),
    ("env", 'S'),
    ("fish", 'c'),
    ("ksh", 'c'),
    ("lua", 'e'),
    ("node", 'e'),
    ("perl", 'e'),
    ("php", 'r'),
    ("python", 'c'),
    ("python3", 'c'),
    ("ruby", 'e'),
    ("script", 'c'),
    ("sh", 'c'),
    ("su", 'c'),
    ("tcsh", 'c'),
    ("watch", 'x'),
    ("zsh", 'c'),
];

/// A custom tool, which runs a command.
#[derive(Debug, Clone)]
pub(crate) struct ToolConfig {
    /// Name by which models call the tool.
    pub(crate) name: String,
    /// Description for models.
    pub(crate) description: String,
    /// JSON Schema of the parameters, an object.
    pub(crate) schema: ToolSchema,
    /// Program and arguments.
    pub(crate) argv: Vec<ArgTemplate>,
    /// Whether parameters at the start of an argument can begin with `-`.
    pub(crate) allow_options: bool,
    pub(crate) risk: ToolRisk,
    /// Timeout of the tool. `None`: that of any command.
    pub(crate) timeout: Option<Duration>,
}

/// Harm that a custom tool can do, as the operator declares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolRisk {
    /// Changes nothing.
    ReadOnly,
    /// Changes are easy to undo.
    SafeWrite,
    /// Can do anything.
    Dangerous,
}

impl ToolRisk {
    fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "read_only",
            Self::SafeWrite => "safe_write",
            Self::Dangerous => "dangerous",
        }
    }
}

impl ToolConfig {
    /// Returns the schemas of the parameters by name.
    pub(crate) fn properties(&self) -> Option<&Map<String, Json>> {
        let properties = self.schema.fields.get("properties");
        properties.and_then(Json::as_object)
    }
}

/// Returns the lines of `--check` about custom tools.
pub(crate) fn tools_report(tools: &[ToolConfig]) -> String {
    let lines = tools.iter().map(|tool| {
        let program = tool.argv.first().and_then(ArgTemplate::literal);
        format!("tool {:<20} {} ({})\n", tool.name, program.unwrap_or_default(), tool.risk.name())
    });
    lines.collect()
}

/// Reads the custom tools of the configuration at `path`. Ignores problems of other tables. Blocks.
pub(crate) fn load_tools(path: &Path) -> Result<Vec<ToolConfig>, Vec<String>> {
    let file = file::read_file::<file::ConfigFile>(path).map_err(|problem| vec![problem])?;
    let mut problems = Vec::new();
    let tools = parse_tools(file.content.tools, &mut problems);
    if problems.is_empty() { Ok(tools) } else { Err(problems) }
}

/// Checks the tables.
pub(super) fn parse_tools(
    tables: Vec<file::CustomToolTable>,
    problems: &mut Vec<String>,
) -> Vec<ToolConfig> {
    if tables.len() > MAX_TOOLS {
        problems
            .push(format!("tools: there are {}; at most {MAX_TOOLS} are allowed", tables.len()));
    }

    let mut names = HashSet::new();
    let tools = tables.into_iter().map(|tool| {
        let name = tool.name.clone();
        let mut report = |text: String| problems.push(format!("tools: {name:?}: {text}"));
        if !names.insert(tool.name.clone()) {
            report("two tools have this name".to_owned());
        }
        parse_tool(tool, &mut report)
    });
    tools.collect()
}

fn parse_tool(tool: file::CustomToolTable, report: &mut impl FnMut(String)) -> ToolConfig {
    if !is_tool_name(&tool.name) {
        report(
            "a name has 1 to 64 letters, digits, underscores and hyphens, and begins with a letter or an underscore"
                .to_owned(),
        );
    }
    if !(1..=MAX_DESCRIPTION_BYTES).contains(&tool.description.trim().len()) {
        report(format!(
            "description: describe the tool in 1 to {MAX_DESCRIPTION_BYTES} bytes: models know nothing else about it"
        ));
    }

    let risk = match tool.risk.as_deref() {
        Some("read_only") => ToolRisk::ReadOnly,
        Some("safe_write") => ToolRisk::SafeWrite,
        None | Some("dangerous") => ToolRisk::Dangerous,
        Some(text) => {
            report(format!("risk {text:?}: give read_only, safe_write or dangerous"));
            ToolRisk::Dangerous
        }
    };
    let timeout = tool.timeout.as_deref().and_then(|text| {
        let timeout = parse_duration(text).filter(|time| !time.is_zero());
        if timeout.is_none() {
            report(format!("timeout {text:?}: give a time of at most a day, such as 30s or 10m"));
        }
        timeout
    });
    let argv: Vec<_> = tool
        .argv
        .iter()
        .filter_map(|text| match ArgTemplate::parse(text) {
            Ok(template) => Some(template),
            Err(problem) => {
                report(format!("argv: {problem}"));
                None
            }
        })
        .collect();
    if argv.len() == tool.argv.len() {
        check_command(&argv, report);
    }

    let tool = ToolConfig {
        name: tool.name,
        description: tool.description.trim().to_owned(),
        schema: schema::parse_schema(&tool.schema, report),
        argv,
        allow_options: tool.allow_options,
        risk,
        timeout,
    };
    check_parameters(&tool, report);
    tool
}

/// Whether a custom tool can have this name.
pub(crate) fn is_tool_name(name: &str) -> bool {
    let is_first = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    (1..=MAX_TOOL_NAME_BYTES).contains(&name.len())
        && name.bytes().next().is_some_and(is_first)
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

/// Checks that `argv` is a command, and that no shell or interpreter executes a parameter.
fn check_command(argv: &[ArgTemplate], report: &mut impl FnMut(String)) {
    let program = argv.first().and_then(ArgTemplate::literal);
    if program.is_none_or(|program| program.is_empty() || program.starts_with('-')) {
        report("argv: the first element must be a program, without parameters".to_owned());
    }
    if argv.len() > MAX_COMMAND_ARGUMENTS {
        report(format!("argv: at most {MAX_COMMAND_ARGUMENTS} elements are allowed"));
    }
    for text in argv.iter().filter_map(ArgTemplate::literal) {
        if text.len() > MAX_ARGUMENT_BYTES || text.contains('\0') {
            report(format!(
                "argv: an element must not have NUL characters or more than {MAX_ARGUMENT_BYTES} bytes"
            ));
        }
    }
    if let Some(name) = interpreter_of_param(argv) {
        report(format!(
            "argv: {name} would execute a parameter as code: give the parameter as a separate argument after the code, and use it there as \"$1\""
        ));
    }
}

/// Returns the program that would execute a parameter as code, if any.
fn interpreter_of_param(argv: &[ArgTemplate]) -> Option<&'static str> {
    for (index, program) in argv.iter().enumerate() {
        let program = program.literal().unwrap_or_default();
        let name = program.rsplit('/').next().unwrap_or_default();
        let known = INTERPRETERS.iter().find(|(known, _)| *known == name);
        let Some((name, letter)) = known else {
            continue;
        };
        let arguments = argv.get(index..).unwrap_or_default();
        let executes_param = arguments.windows(2).any(|pair| {
            let [option, code] = pair else { return false };
            let is_option = option.literal().is_some_and(|option| {
                option.starts_with('-') && !option.starts_with("--") && option.contains(*letter)
            });
            is_option && code.literal().is_none()
        });
        if executes_param {
            return Some(name);
        }
    }
    None
}

/// Checks that `argv` and the schema name the same parameters.
fn check_parameters(tool: &ToolConfig, report: &mut impl FnMut(String)) {
    let Some(properties) = tool.properties() else {
        return;
    };
    let named: HashSet<_> = tool.argv.iter().flat_map(ArgTemplate::param_names).collect();
    for name in &named {
        if !properties.contains_key(*name) {
            report(format!("argv names the parameter {name}, which is not in schema.properties"));
        }
    }
    for name in properties.keys() {
        if !named.contains(name.as_str()) {
            report(format!(
                "schema.properties has {name}, which argv does not use: write {{{name}}} there"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> (Vec<ToolConfig>, Vec<String>) {
        #[derive(serde::Deserialize)]
        struct ToolsTestFile {
            tools: Vec<file::CustomToolTable>,
        }
        let mut problems = Vec::new();
        match toml::from_str::<ToolsTestFile>(text) {
            Ok(file) => (parse_tools(file.tools, &mut problems), problems),
            Err(error) => (Vec::new(), vec![error.message().to_owned()]),
        }
    }

    #[test]
    fn all_keys_are_read() {
        let (tools, problems) = check(
            "[[tools]]\nname = 'grep_log'\ndescription = ' Search. '\nargv = ['grep', '-c', '--', '{word}', '{files...}']\nrisk = 'read_only'\ntimeout = '5m'\n[tools.schema]\nrequired = ['word']\nproperties.word = { type = 'string' }\nproperties.files = { type = 'array', items = { type = 'string' } }",
        );
        assert_eq!(problems, [""; 0]);
        let tool = &tools[0];
        assert_eq!(
            (tool.name.as_str(), tool.description.as_str(), tool.risk),
            ("grep_log", "Search.", ToolRisk::ReadOnly)
        );
        assert_eq!(tool.timeout, Some(Duration::from_secs(300)));
        assert_eq!(
            (&tool.schema.fields["type"], &tool.schema.fields["additionalProperties"],),
            (&"object".into(), &false.into())
        );
        assert_eq!(tool.argv.len(), 5);

        // Without a schema, a tool has no parameters. The default risk is dangerous.
        let (tools, problems) = check("[[tools]]\nname = 'x'\ndescription = 'X'\nargv = ['make']");
        assert_eq!(problems, [""; 0]);
        assert_eq!((tools[0].risk, tools[0].timeout), (ToolRisk::Dangerous, None));
        assert!(tools[0].properties().is_some_and(Map::is_empty));
    }

    #[test]
    fn references_of_a_schema_are_inlined() {
        let (tools, problems) = check(
            "[[tools]]\nname = 'x'\ndescription = 'X'\nargv = ['x', '{p}', '{q}']\n[tools.schema]\nproperties.p = { '$ref' = '#/$defs/n', description = 'P.' }\nproperties.q = { '$ref' = '#/$defs/n', maximum = 3 }\n'$defs'.n = { type = 'integer', description = 'N.' }",
        );
        assert_eq!(problems, [""; 0]);
        let expected = serde_json::json!({
            "p": {"type": "integer", "description": "P."},
            "q": {"maximum": 3, "allOf": [{"type": "integer", "description": "N."}]},
        });
        assert_eq!(tools[0].schema.fields["properties"], expected);

        // Two references at each level grow exponentially.
        let levels: String = (0..20)
            .map(|level| {
                let next = level + 1;
                format!(
                    "'$defs'.n{level} = {{ allOf = [{{ '$ref' = '#/$defs/n{next}' }}, {{ '$ref' = '#/$defs/n{next}' }}] }}\n"
                )
            })
            .collect();
        let (_, problems) = check(&format!(
            "[[tools]]\nname = 'x'\ndescription = 'X'\nargv = ['x', '{{p}}']\n[tools.schema]\nproperties.p = {{ '$ref' = '#/$defs/n0' }}\n{levels}'$defs'.n20 = {{}}"
        ));
        assert!(problems[0].contains("parts"), "{problems:?}");
    }

    #[test]
    fn every_problem_is_reported() {
        let tool = "[[tools]]\nname = '1 tool'\ndescription = ' '\nargv = ['{a}', 'x{', '{b}']\nrisk = 'none'\ntimeout = '0s'\nschema.type = 'array'\nschema.properties.a = 'text'\n";
        let (_, problems) = check(&format!("{tool}{tool}"));
        for part in [
            "\"1 tool\": a name has",
            "\"1 tool\": two tools",
            "description",
            "risk \"none\"",
            "timeout \"0s\"",
            "argv: \"x{\"",
            "schema.type",
            "schema.properties.a: give a table",
            "the parameter b",
        ] {
            assert!(
                problems.iter().any(|problem| problem.contains(part)),
                "{part} in {problems:#?}"
            );
        }
        for (rest, part) in [
            ("argv = []", "must be a program"),
            ("argv = ['']", "must be a program"),
            ("argv = ['{p}']\nschema.properties.p = {}", "must be a program"),
            ("argv = ['a']\nschema.properties.p = {}", "does not use"),
            (
                "argv = ['env', '/bin/bash', '-ec', 'make {p}']\nschema.properties.p = {}",
                "bash would execute",
            ),
            (
                "argv = ['bash', '-o', 'pipefail', '-c', 'echo {p}']\nschema.properties.p = {}",
                "bash would execute",
            ),
            ("argv = ['python3', '-Ic', '{p}']\nschema.properties.p = {}", "python3 would execute"),
            ("argv = ['env', '-S', 'make {p}']\nschema.properties.p = {}", "env would execute"),
            ("argv = ['-a']", "must be a program"),
            ("argv = [\"a\", \"\\u0000\"]", "NUL"),
            ("argv = ['a']\nschema.required = ['q']", "\"q\" is not in schema.properties"),
            (
                "argv = ['a', '{p}']\nschema.properties.p = { type = 'string', maxLenght = 3 }",
                "schema.properties.p.maxLenght: is not supported",
            ),
            (
                "argv = ['a', '{p}']\nschema.properties.p = { type = 'number', maximum = inf }",
                "schema.properties: inf is not a number",
            ),
            ("argv = ['a', '{p}']\nschema.properties.p.default = 2020-01-01", "JSON has no times"),
            ("argv = ['a', '{p-q}']\nschema.properties.p-q = {}", "names of parameters have"),
            ("argv = ['a']\nschema.anyOf = []", "schema.anyOf: not allowed for all parameters"),
            ("argv = ['a']\nschema.additionalProperties = true", "schema.additionalProperties"),
            ("argv = ['a']\nschema.'$schema' = 'x'", "schema.$schema"),
            (
                "argv = ['a', '{p}']\nschema.properties.p = { '$ref' = '#/$defs/no' }",
                "has no target",
            ),
            (
                "argv = ['a', '{p}']\nschema.properties.p = { '$ref' = '#/$defs/n' }\nschema.'$defs'.n = { items = { anyOf = [{ '$ref' = '#/$defs/n' }] } }",
                "refers to a schema that contains it",
            ),
            ("argv = ['a']\ncolour = 'red'", "unknown field"),
        ] {
            let (_, problems) = check(&format!("[[tools]]\nname = 'x'\ndescription = 'X'\n{rest}"));
            assert!(
                problems.iter().any(|problem| problem.contains(part)),
                "{part} in {problems:#?}"
            );
        }
    }
}
