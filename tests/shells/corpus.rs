//! Sequences of commands, in a bash that lives from the first to the last and in a named shell.
//!
//! `corpus.txt` has the sequences. The living bash reads them from its standard input and evaluates
//! each with `eval`. Both sides run in sandboxes of the same daemon, in the same directory.

use std::{fs, path::Path};

use jig::api::v1::RunRequest;
use regex::bytes::Regex;

use super::in_shell;
use crate::support::{Daemon, argv, with_metadata};

const CORPUS: &str = include_str!("corpus.txt");
/// Fewest sequences that the corpus has.
const MIN_SEQUENCES: usize = 100;
/// Directory of both sides, in the workspace.
const DIRECTORY: &str = "w";
/// Where the living bash writes what its commands do.
const LIVING: &str = "living";

/// What a command did.
#[derive(Debug, PartialEq, Eq)]
struct CommandEffect {
    stdout: String,
    stderr: String,
    exit_code: i32,
}

/// The living bash after one command. Without an effect, it had ended before.
enum LivingStep {
    Ran(CommandEffect),
    /// The command ended the shell.
    Ended(CommandEffect),
}

#[tokio::test]
async fn commands_do_the_same_as_in_a_living_bash() {
    let daemon = Daemon::start().await;
    let sequences = sequences();
    assert!(sequences.len() >= MIN_SEQUENCES, "{}", sequences.len());

    let mut differences = Vec::new();
    for (index, (name, commands)) in sequences.iter().enumerate() {
        let living = run_living(&daemon, commands).await;
        prepare_directory(&daemon);
        for (number, (command, step)) in commands.iter().zip(&living).enumerate() {
            let cwd = (number == 0).then(|| DIRECTORY.to_owned());
            let request = RunRequest { cwd, ..in_shell(command) };
            let request = with_metadata("jig-session", &format!("s{index}"), request);
            let response = daemon.run(request).await;
            let (LivingStep::Ran(expected) | LivingStep::Ended(expected)) = step;
            let effect = effect(&response.stdout, &response.stderr, response.exit_code.unwrap());
            if effect != *expected {
                differences
                    .push(format!("{name}: {command}\n  {effect:?}\n  living: {expected:?}"));
            }
            if matches!(step, LivingStep::Ran(_)) && response.shell_state != "updated" {
                differences.push(format!("{name}: {command}: {:?}", response.shell_state));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// The sequences by name.
fn sequences() -> Vec<(&'static str, Vec<&'static str>)> {
    let blocks = CORPUS.split("=== ").skip(1);
    let sequences = blocks.map(|block| {
        let (name, commands) = block.split_once('\n').unwrap();
        let commands = commands.split("\n---\n").map(|command| command.trim_end_matches('\n'));
        (name, commands.collect())
    });
    sequences.collect()
}

/// Runs the commands in one bash, up to the one that ends it.
async fn run_living(daemon: &Daemon, commands: &[&str]) -> Vec<LivingStep> {
    prepare_directory(daemon);
    let results = daemon.file(LIVING);
    let _missing = fs::remove_dir_all(&results);
    fs::create_dir(&results).unwrap();

    let mut script = String::new();
    for (number, command) in commands.iter().enumerate() {
        let file = |kind: &str| format!("/workspace/{LIVING}/{kind}{number}");
        let quoted = command.replace('\'', r"'\''");
        // The function restores the status of the last command.
        script.push_str(&format!(
            "__f() {{ \\unset -f __f; \\return $1; }}; __f ${{__r-0}} && :; \
             \\eval '{quoted}' </dev/null >|{} 2>|{}; __r=$?; \\echo $__r >|{}\n",
            file("stdout"),
            file("stderr"),
            file("status"),
        ));
    }
    let request = RunRequest {
        stdin: script.into_bytes().into(),
        cwd: Some(DIRECTORY.to_owned()),
        ..argv(&["bash"])
    };
    let exit_code = daemon.run(request).await.exit_code.unwrap();

    let mut steps = Vec::new();
    for number in 0..commands.len() {
        let read = |kind: &str| fs::read(results.join(format!("{kind}{number}"))).ok();
        let (Some(stdout), Some(stderr)) = (read("stdout"), read("stderr")) else {
            break;
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let status = read("status").map(|status| text(&status).trim().parse().unwrap());
        let effect = effect(&text(&stdout), &text(&stderr), status.unwrap_or(exit_code));
        steps.push(match status {
            Some(_) => LivingStep::Ran(effect),
            None => LivingStep::Ended(effect),
        });
    }
    steps
}

/// Makes the directory of both sides as it is at the start of a sequence.
fn prepare_directory(daemon: &Daemon) {
    let directory = daemon.file(DIRECTORY);
    let _missing = fs::remove_dir_all(&directory);
    let make = |path: &Path| fs::create_dir(path).unwrap();
    make(&directory);
    make(&directory.join("sub"));
    fs::write(directory.join(".hidden"), "").unwrap();
}

/// The lines of a named shell count from 1 in each command; those of the living one go on.
fn effect(stdout: &str, stderr: &str, exit_code: i32) -> CommandEffect {
    let line_numbers = Regex::new(r"line \d+").unwrap();
    let stderr = line_numbers.replace_all(stderr.as_bytes(), b"line N".as_slice());
    CommandEffect {
        stdout: stdout.to_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
        exit_code,
    }
}
