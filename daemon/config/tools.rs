//! The `[[tools]]` tables: tools that commands are. Whether their schemas can be used, and whether other tools
//! have their names, is not known here.

mod template;

use std::{collections::HashSet, path::Path, time::Duration};

use serde_json::{Map, Value as Json};

pub(crate) use self::template::Template;
use super::{file, time::time};

/// Most tools of one daemon: models lose their way among fewer.
const MOST_TOOLS: usize = 256;
/// Longest name, in bytes: what all vendors take.
const LONGEST_NAME: usize = 64;
/// Longest description, in bytes: all of them are told to a model with each request.
const LONGEST_DESCRIPTION: usize = 8192;
/// Largest schema, in bytes as JSON, for the same reason.
const LARGEST_SCHEMA: usize = 64 << 10;
/// Most arguments that are written down.
const MOST_ARGUMENTS: usize = 1024;
/// Programs that read what follows `-c` as commands.
const SHELLS: [&str; 8] = ["ash", "bash", "busybox", "csh", "dash", "ksh", "sh", "zsh"];

/// A tool that is a command.
#[derive(Debug, Clone)]
pub(crate) struct Tool {
    /// Name that models call it by.
    pub(crate) name: String,
    /// What models are told of it.
    pub(crate) description: String,
    /// JSON Schema of its parameters, an object.
    pub(crate) schema: Map<String, Json>,
    /// The program and its arguments.
    pub(crate) argv: Vec<Template>,
    /// Whether parameters may be options of the program.
    pub(crate) allow_options: bool,
    /// What it may do.
    pub(crate) risk: Risk,
    /// How long it may take, where it is not as long as any command.
    pub(crate) timeout: Option<Duration>,
}

/// What a tool may do, as the operator says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Risk {
    /// It changes nothing.
    ReadOnly,
    /// What it changes is easy to undo.
    SafeWrite,
    /// Anything.
    Dangerous,
}

impl Risk {
    fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "read_only",
            Self::SafeWrite => "safe_write",
            Self::Dangerous => "dangerous",
        }
    }
}

impl Tool {
    /// The schemas of its parameters, by their names.
    pub(crate) fn properties(&self) -> Option<&Map<String, Json>> {
        self.schema.get("properties").and_then(Json::as_object)
    }
}

/// Lines that say which there are.
pub(crate) fn report(tools: &[Tool]) -> String {
    let lines = tools.iter().map(|tool| {
        let program = tool.argv.first().and_then(Template::plain);
        format!(
            "tool {:<20} {} ({})\n",
            tool.name,
            program.unwrap_or_default(),
            tool.risk.name()
        )
    });
    lines.collect()
}

/// The tools of the configuration at `path`, whatever else is wrong with it. Blocks.
pub(crate) fn tools_of(path: &Path) -> Result<Vec<Tool>, Vec<String>> {
    let (file, _) = file::read::<file::File>(path).map_err(|problem| vec![problem])?;
    let mut problems = Vec::new();
    let tools = tools(file.tools, &mut problems);
    match problems.is_empty() {
        true => Ok(tools),
        false => Err(problems),
    }
}

/// Checks the tables.
pub(super) fn tools(written: Vec<file::Tool>, problems: &mut Vec<String>) -> Vec<Tool> {
    if written.len() > MOST_TOOLS {
        problems.push(format!(
            "tools: there are {}; {MOST_TOOLS} are the most",
            written.len()
        ));
    }
    let mut names = HashSet::new();
    let tools = written.into_iter().map(|tool| {
        let name = tool.name.clone();
        let mut report = |text: String| problems.push(format!("tools: {name:?}: {text}"));
        if !names.insert(tool.name.clone()) {
            report("two tools have this name".to_owned());
        }
        read(tool, &mut report)
    });
    tools.collect()
}

fn read(tool: file::Tool, report: &mut impl FnMut(String)) -> Tool {
    if !is_tool_name(&tool.name) {
        report(
            "a name has 1 to 64 letters, digits, underscores and hyphens, and begins with a letter or an underscore"
                .to_owned(),
        );
    }
    if !(1..=LONGEST_DESCRIPTION).contains(&tool.description.trim().len()) {
        report(format!(
            "description: say what it does in 1 to {LONGEST_DESCRIPTION} bytes: models go by nothing else"
        ));
    }
    let risk = match tool.risk.as_deref() {
        Some("read_only") => Risk::ReadOnly,
        Some("safe_write") => Risk::SafeWrite,
        None | Some("dangerous") => Risk::Dangerous,
        Some(text) => {
            report(format!(
                "risk {text:?}: give read_only, safe_write or dangerous"
            ));
            Risk::Dangerous
        }
    };
    let timeout = tool.timeout.as_deref().and_then(|text| {
        let timeout = time(text).filter(|time| !time.is_zero());
        if timeout.is_none() {
            report(format!(
                "timeout {text:?}: give a time of at most a day, such as 30s or 10m"
            ));
        }
        timeout
    });
    let argv: Vec<_> = tool
        .argv
        .iter()
        .filter_map(|text| match Template::parse(text) {
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
    let tool = Tool {
        name: tool.name,
        description: tool.description.trim().to_owned(),
        schema: schema(tool.schema, report),
        argv,
        allow_options: tool.allow_options,
        risk,
        timeout,
    };
    check_parameters(&tool, report);
    tool
}

/// Whether a tool may have this name.
pub(crate) fn is_tool_name(name: &str) -> bool {
    let is_first = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    (1..=LONGEST_NAME).contains(&name.len())
        && name.bytes().next().is_some_and(is_first)
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

/// The schema as models are told it: an object, without other parameters unless it says something of them.
fn schema(written: Map<String, Json>, report: &mut impl FnMut(String)) -> Map<String, Json> {
    let mut schema = written;
    let kind = schema.entry("type").or_insert_with(|| "object".into());
    if kind != "object" {
        report("schema.type: parameters are an \"object\"".to_owned());
    }
    let properties = schema
        .entry("properties")
        .or_insert_with(|| Map::new().into());
    if !properties
        .as_object()
        .is_some_and(|properties| properties.values().all(Json::is_object))
    {
        report("schema.properties: give a table for each parameter".to_owned());
    }
    schema
        .entry("additionalProperties")
        .or_insert_with(|| false.into());
    let bytes = Json::Object(schema.clone()).to_string().len();
    if bytes > LARGEST_SCHEMA {
        report(format!(
            "schema: it has {bytes} bytes as JSON; {LARGEST_SCHEMA} are the most"
        ));
    }
    schema
}

/// Looks whether it is a command, and one in which no shell reads a parameter.
fn check_command(argv: &[Template], report: &mut impl FnMut(String)) {
    let is_program = argv
        .first()
        .and_then(Template::plain)
        .is_some_and(|program| !program.is_empty());
    if !is_program {
        report("argv: its first element names a program, and no parameter".to_owned());
    }
    if argv.len() > MOST_ARGUMENTS {
        report(format!("argv: {MOST_ARGUMENTS} elements are the most"));
    }
    for three in argv.windows(3) {
        let [shell, option, script] = three else {
            continue;
        };
        let is_shell = shell.plain().is_some_and(|program| {
            let name = program.rsplit('/').next().unwrap_or_default();
            SHELLS.contains(&name)
        });
        let is_command = option.plain().is_some_and(|option| {
            option.starts_with('-') && !option.starts_with("--") && option.contains('c')
        });
        if is_shell && is_command && script.plain().is_none() {
            report(
                "argv: a shell would read a parameter as a command: give it as an argument of its own behind the script, which calls it \"$1\""
                    .to_owned(),
            );
        }
    }
}

/// Looks whether the parameters are those that the arguments name.
fn check_parameters(tool: &Tool, report: &mut impl FnMut(String)) {
    let Some(properties) = tool.properties() else {
        return;
    };
    let named: HashSet<_> = tool.argv.iter().flat_map(Template::names).collect();
    for name in &named {
        if !properties.contains_key(*name) {
            report(format!(
                "argv names the parameter {name}, which schema.properties has not"
            ));
        }
    }
    for name in properties.keys() {
        if !named.contains(name.as_str()) {
            report(format!(
                "schema.properties has {name}, which argv has no use for: write {{{name}}} there"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> (Vec<Tool>, Vec<String>) {
        #[derive(serde::Deserialize)]
        struct Whole {
            tools: Vec<file::Tool>,
        }
        let mut problems = Vec::new();
        match toml::from_str::<Whole>(text) {
            Ok(whole) => (tools(whole.tools, &mut problems), problems),
            Err(error) => (Vec::new(), vec![error.message().to_owned()]),
        }
    }

    #[test]
    fn a_tool_is_what_its_table_says() {
        let (tools, problems) = check(
            "[[tools]]\nname = 'grep_log'\ndescription = ' Search. '\nargv = ['grep', '-c', '--', '{word}', '{files...}']\nrisk = 'read_only'\ntimeout = '5m'\n[tools.schema]\nrequired = ['word']\nproperties.word = { type = 'string' }\nproperties.files = { type = 'array', items = { type = 'string' } }",
        );
        assert_eq!(problems, [""; 0]);
        let tool = &tools[0];
        assert_eq!(
            (tool.name.as_str(), tool.description.as_str(), tool.risk),
            ("grep_log", "Search.", Risk::ReadOnly)
        );
        assert_eq!(tool.timeout, Some(Duration::from_secs(300)));
        assert_eq!(
            (&tool.schema["type"], &tool.schema["additionalProperties"]),
            (&"object".into(), &false.into())
        );
        assert_eq!(tool.argv.len(), 5);
        // Without a schema there are no parameters, and the worst is assumed.
        let (tools, problems) = check("[[tools]]\nname = 'x'\ndescription = 'X'\nargv = ['make']");
        assert_eq!(problems, [""; 0]);
        assert_eq!((tools[0].risk, tools[0].timeout), (Risk::Dangerous, None));
        assert!(tools[0].properties().is_some_and(Map::is_empty));
    }

    #[test]
    fn every_problem_is_told() {
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
            "schema.properties",
            "the parameter b",
        ] {
            assert!(
                problems.iter().any(|problem| problem.contains(part)),
                "{part} in {problems:#?}"
            );
        }
        for (rest, part) in [
            ("argv = []", "names a program"),
            ("argv = ['']", "names a program"),
            (
                "argv = ['{p}']\nschema.properties.p = {}",
                "names a program",
            ),
            ("argv = ['a']\nschema.properties.p = {}", "no use for"),
            (
                "argv = ['env', '/bin/bash', '-ec', 'make {p}']\nschema.properties.p = {}",
                "a shell would read",
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
