//! Invalid `[[tools]]` tables: the daemon does not start, and reports every problem.

use std::fs;

use crate::support::run_jigd;

/// Runs `jigd --check` with these tools. Returns its report, after the exit code unless that is 78.
fn check_output(tools: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("jigd.toml");
    let workspace = directory.path().join("workspace");
    fs::create_dir(&workspace).unwrap();
    let state = directory.path().join("state");
    let text = format!(
        "listen = ['unix:{}']\nstate_dir = '{}'\n[[workspaces]]\npath = '{}'\n{tools}",
        directory.path().join("socket").display(),
        state.display(),
        workspace.display(),
    );
    fs::write(&config, text).unwrap();

    let output = run_jigd(&["--check", "--config", config.to_str().unwrap()]);
    let report = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    match output.status.code() {
        Some(78) => report,
        code => format!("{code:?}: {report}"),
    }
}

#[test]
fn check_reports_every_invalid_tool_table() {
    let tool = |name: &str, rest: &str| {
        format!("[[tools]]\nname = '{name}'\ndescription = 'Does.'\n{rest}\n")
    };
    let both = tool("a b", "argv = ['x', '{y}']") + &tool("no_program", "argv = []");
    for (tools, parts) in [
        (
            both,
            vec![
                "tools: \"a b\": a name has 1 to 64",
                "tools: \"a b\": argv names the parameter y",
                "tools: \"no_program\": argv: the first element must be a program",
            ],
        ),
        (
            tool("run", "argv = ['x']") + &tool("shell", "argv = ['x']"),
            vec![
                "tools: \"run\": the contract has a tool of this name",
                "tools: \"shell\": a dialect has a tool of this name",
            ],
        ),
        (
            tool("x", "argv = ['y', '{p}']\nschema.properties.p = { type = 'text' }"),
            vec!["tools: \"x\": schema.properties.p.type: "],
        ),
        (
            tool("x", "argv = ['sh', '-c', 'echo {p}']\nschema.properties.p = {}"),
            vec!["sh would execute a parameter as code", "\"$1\""],
        ),
        (
            tool("x", "argv = ['y']") + "[policy]\ndeny_tools = ['z']",
            vec!["policy.deny_tools: unknown tool \"z\"", "write_file, x"],
        ),
    ] {
        let report = check_output(&tools);
        for part in parts {
            assert!(report.contains(part), "{part} in {report}");
        }
    }
}

#[test]
fn check_lists_valid_tools() {
    let report =
        check_output("[[tools]]\nname = 'make'\ndescription = 'Makes.'\nargv = ['make']\n");
    let line = format!("tool {:<20} make (dangerous)", "make");
    assert!(report.starts_with("Some(0)") && report.contains(&line), "{report}");
}

#[test]
fn documentation_example_is_valid() {
    let page = include_str!("../../docs/tools.md");
    let (_, rest) = page.split_once("```toml jigd\n[[tools]]\n").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    let report = check_output(&format!("[[tools]]\n{example}"));
    assert!(report.starts_with("Some(0)") && report.contains("tool run_test"), "{report}");
}
