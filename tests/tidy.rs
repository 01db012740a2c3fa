//! Rules of this repository, checked on its files.

mod docs;
mod files;
mod imports;
mod names;
mod tokens;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use jig::api::reason::Reason;

use self::{
    files::{committed_files, package_files, read_file, rust_files},
    imports::{ModuleUse, Modules, Sources, cycles},
    tokens::{Token, tokens_of, without_tests},
};

/// Maximum lines of a source file. Long tests get a file of their own.
const MAX_FILE_LINES: usize = 500;

/// The roots of the package's crates, the library first.
const CRATES: [&str; 3] = ["lib.rs", "daemon/main.rs", "client/main.rs"];
/// Name under which the other crates know the library.
const LIBRARY: &str = "jig";

/// The layers of the package, from top to bottom. A layer may use itself and the layers below it.
const LAYERS: &[&[&str]] = &[
    &["client/main"],
    &["client", "daemon/main"],
    &["daemon"],
    &["daemon/fuzz", "daemon/start"],
    &["daemon/key_admin", "daemon/server"],
    &["daemon/agent_sandbox"],
    &["daemon/http"],
    &["daemon/grpc"],
    &["daemon/fleet"],
    &["daemon/pipeline"],
    &["daemon/dialect"],
    &["daemon/tool"],
    &["daemon/egress", "daemon/fetch", "daemon/process", "daemon/workspace"],
    &["daemon/netpolicy", "daemon/text"],
    &["daemon/catalog", "daemon/store"],
    &["daemon/sandbox"],
    &["daemon/sys"],
    &["daemon/config"],
    &["daemon/telemetry"],
    &["daemon/fd_exhaustion", "daemon/queue"],
    &["daemon/task"],
    &["daemon/checksum"],
    &["daemon/error"],
    &["archive"],
    &["mcp"],
];

/// Allowed upward uses: from, to (each with everything below it), and the reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "daemon/config",
        "daemon/netpolicy/rules",
        "plain data: hosts and addresses that the configuration allows",
    ),
    (
        "daemon/config",
        "daemon/sandbox/plan.rs",
        "plain data: the part of the configuration that the launcher receives",
    ),
    (
        "daemon/config",
        "daemon/sandbox/limits.rs",
        "plain data: the limits that the configuration sets",
    ),
    (
        "daemon/config",
        "daemon/sandbox/level.rs",
        "plain data: the minimum level that the configuration names",
    ),
];

/// Modules that may use the types generated from the contract, and the reason.
const WIRE_TYPES: &[(&str, &str)] = &[
    ("client/", "the other side of the contract"),
    ("mcp/", "the other side of the contract"),
    ("daemon/pipeline/", "generic over requests and responses"),
    ("daemon/catalog/", "reads the descriptors and their options"),
    ("daemon/grpc/", "translates"),
    ("daemon/fleet/", "stores records of jobs, and reads requests from queues"),
    ("daemon/http/", "translates"),
    ("daemon/agent_sandbox/", "translates"),
    (
        "daemon/server/mod.rs",
        "registers the generated services, and the descriptors for reflection",
    ),
    ("daemon/tool/", "takes typed requests, gives typed responses"),
];

/// File names that say nothing about the content.
const VAGUE_NAMES: &[&str] =
    &["common", "helper", "helpers", "misc", "shared", "stuff", "types", "util", "utils"];

// Split, so that this file does not violate its own rules.
const MACHINE_PATHS: &[&str] =
    &[concat!("/wo", "rk/main"), concat!("/wo", "rk/shared"), concat!("/tmp/", "wt/")];
/// The author's home directory. Only tests name it: they try to reach it from a sandbox.
const HOME_PATH: &str = concat!("/ro", "ot/");
const REGISTRIES: &[&str] = &[
    concat!("crates", ".io"),
    concat!("npmjs", ".org"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("proxy.golang", ".org"),
];
const WORK_MARKERS: &[&str] =
    &[concat!("FIX", "ME"), concat!("HA", "CK"), concat!("TO", "DO"), concat!("XX", "X")];

#[test]
fn rust_files_start_with_a_module_comment() {
    let missing = rust_files()
        .into_iter()
        .filter(|(_, text)| !text.starts_with("//! "))
        .map(|(file, _)| file);
    assert_none("Rust files that do not start with `//! `", missing);
}

#[test]
fn source_files_are_short() {
    assert_none("source files with more than 500 lines", overlong_files(&rust_files()));
    let lines = |count| ("tests/x.rs".to_owned(), "//! x\n".repeat(count));
    assert_eq!(overlong_files(&Sources::from([lines(500)])), [""; 0]);
    assert_eq!(overlong_files(&Sources::from([lines(501)])), ["tests/x.rs: 501 lines"]);
}

#[test]
fn unit_tests_are_at_the_end_of_the_file() {
    let sources = rust_files();
    let found = sources.iter().filter_map(|(file, text)| {
        let line = line_after_tests(text)?;
        Some(format!("{file}:{line}"))
    });
    assert_none("code after the unit tests", found);

    let tests = "//! x\n#[cfg(test)]\nmod tests {\n}\n";
    assert_eq!(line_after_tests(tests), None);
    assert_eq!(line_after_tests(&format!("{tests}fn f() {{}}\n")), Some(5));
}

#[test]
fn unsafe_code_is_in_sys_only() {
    let found = rust_files()
        .into_iter()
        .filter(|(file, _)| !file.starts_with("daemon/sys/"))
        .flat_map(|(file, text)| {
            tokens_of(&text)
                .into_iter()
                .filter(|(_, token)| *token == Token::Word("unsafe".into()))
                .map(move |(line, _)| format!("{file}:{line}"))
        });
    assert_none("`unsafe` outside daemon/sys", found);
}

#[test]
fn file_names_are_specific() {
    let found = committed_files().into_keys().filter(|file| {
        Path::new(file).components().any(|part| {
            let part = part.as_os_str().to_string_lossy();
            VAGUE_NAMES.contains(&part.split('.').next().unwrap_or_default())
        })
    });
    assert_none("files or directories with a vague name", found);
}

#[test]
fn source_files_belong_to_a_crate() {
    let sources = package_files();
    let modules = Modules::find(&sources, &CRATES, tokens_of);
    let known = modules.files();
    let orphans =
        sources.keys().filter(|file| *file != "build.rs" && !known.contains(file.as_str()));
    assert_none("source files that are a module of no crate", orphans);
}

#[test]
fn imports_run_downwards() {
    let module_uses = module_uses();
    assert_none(
        "uses of a layer above or beside (see LAYERS in tests/tidy.rs)",
        module_uses.iter().filter(|use_| is_upward(use_)).map(describe),
    );

    let unused = EXCEPTIONS.iter().filter(|exception| {
        !module_uses.iter().any(|use_| exception_for(use_) == Some(*exception))
    });
    assert_none(
        "exceptions that are no longer needed",
        unused.map(|(from, to, _)| format!("{from} → {to}")),
    );
}

#[test]
fn upward_and_sideways_uses_are_detected() {
    let is_rejected = |from: &str, to: &str, module: &str| {
        is_upward(&ModuleUse {
            from: from.to_owned(),
            line: 1,
            to: to.to_owned(),
            module: module.to_owned(),
        })
    };

    for (from, to) in [
        ("daemon/sys/mod.rs", "daemon/grpc/run.rs"),
        ("daemon/process/mod.rs", "daemon/workspace/read.rs"),
        ("daemon/error.rs", "daemon/mod.rs"),
        ("daemon/mod.rs", "client/connect.rs"),
        ("daemon/config/mod.rs", "daemon/sandbox/pool/mod.rs"),
        ("daemon/sandbox/pool/mod.rs", "daemon/process/mod.rs"),
    ] {
        assert!(is_rejected(from, to, "daemon"), "{from} → {to}");
    }

    for (from, to) in [
        ("daemon/grpc/run.rs", "daemon/sys/mod.rs"),
        ("daemon/grpc/run.rs", "daemon/grpc/status.rs"),
        ("daemon/config/mod.rs", "daemon/sandbox/plan.rs"),
        ("client/main.rs", "daemon/mod.rs"),
        ("client/run.rs", "client/connect.rs"),
    ] {
        assert!(!is_rejected(from, to, "daemon"), "{from} → {to}");
    }

    assert!(!is_rejected("daemon/sys/mod.rs", "lib.rs", "api::v1"));
}

#[test]
fn files_have_no_import_cycles() {
    let uses = module_uses().into_iter().map(|use_| (use_.from, use_.to)).collect();
    let cycles = cycles(&uses).into_iter().map(|cycle| cycle.join(" → "));
    assert_none("cycles between files", cycles);
}

#[test]
fn directories_have_no_import_cycles() {
    let mut uses: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
    for use_ in module_uses().iter().filter(|use_| exception_for(use_).is_none()) {
        let from: Vec<&str> = use_.from.split('/').collect();
        let to: Vec<&str> = use_.to.split('/').collect();
        let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
        uses.entry(from[..shared].join("/"))
            .or_default()
            .insert((from[shared].to_owned(), to[shared].to_owned()));
    }

    let cycles = uses.iter().flat_map(|(directory, uses)| {
        cycles(uses).into_iter().map(move |cycle| format!("{directory}: {}", cycle.join(" → ")))
    });
    assert_none("cycles within a directory", cycles);
}

#[test]
fn wire_types_are_used_in_few_modules() {
    let module_uses = module_uses();
    let found = module_uses.iter().filter(|use_| {
        let is_wire_type = is_generated(use_) && use_.module != "api::reason";
        is_wire_type && !WIRE_TYPES.iter().any(|(allowed, _)| use_.from.starts_with(allowed))
    });
    assert_none("uses of generated types outside WIRE_TYPES", found.map(describe));
}

#[test]
fn error_reasons_match_the_contract() {
    let names: BTreeSet<&str> = Reason::ALL.iter().map(|reason| reason.name()).collect();
    assert_eq!(names.len(), Reason::ALL.len(), "names are unique");

    let protos: Vec<String> = committed_files()
        .into_iter()
        .filter(|(file, _)| file.starts_with("proto/jig/"))
        .map(|(_, text)| text)
        .collect();
    let listed: BTreeSet<&str> = protos
        .iter()
        .flat_map(|text| text.lines())
        .filter_map(|line| line.trim().strip_prefix("// * `")?.split_once('`'))
        .map(|(reason, _)| reason)
        .collect();
    let unlisted = names.iter().filter(|name| !listed.contains(*name));
    assert_none("reasons that no error list in the protos contains", unlisted);

    let unknown = listed.iter().filter(|name| !names.contains(*name));
    assert_none("reasons in the protos that the daemon does not define", unknown);
}

#[test]
fn paths_in_messages_are_escaped() {
    let found = package_files().into_iter().flat_map(|(file, text)| {
        let is_unescaped = |line: &str| line.contains("\\\"{path}") || line.contains("\\\"{name}");
        text.lines()
            .enumerate()
            .filter(|(_, line)| is_unescaped(line))
            .map(|(number, _)| format!("{file}:{}", number + 1))
            .collect::<Vec<_>>()
    });
    assert_none("paths between quotation marks without `{:?}`", found);
}

#[test]
fn no_work_markers_remain() {
    let is_data = |file: &str| file.starts_with("tests/seeds/");
    let files = committed_files().into_iter().filter(|(file, _)| !is_data(file));

    let words = files.flat_map(|(file, text)| {
        text.lines()
            .enumerate()
            .filter(|(_, line)| WORK_MARKERS.iter().any(|word| line.contains(word)))
            .map(|(number, _)| format!("{file}:{}", number + 1))
            .collect::<Vec<_>>()
    });

    let code = rust_files().into_iter().flat_map(|(file, text)| {
        let tokens = tokens_of(&text);
        tokens
            .windows(3)
            .filter(|window| match window {
                [(_, Token::Word(word)), (_, Token::Symbol('!')), _] => {
                    ["todo", "unimplemented", "dbg"].contains(&word.as_str())
                }
                [(_, Token::Symbol('#')), (_, Token::Symbol('[')), (_, Token::Word(word))] => {
                    word == "ignore"
                }
                _ => false,
            })
            .map(|window| format!("{file}:{}", window[0].0))
            .collect::<Vec<_>>()
    });
    assert_none("unfinished work", words.chain(code));
}

#[test]
fn files_name_no_machine_or_registry() {
    let found = committed_files()
        .into_iter()
        .filter(|(file, _)| !file.ends_with("Cargo.lock"))
        .flat_map(|(file, text)| {
            text.lines()
                .enumerate()
                .filter(|(_, line)| {
                    let mut names = MACHINE_PATHS.iter().chain(REGISTRIES);
                    names.any(|name| line.contains(name))
                        || !file.starts_with("tests/") && line.contains(HOME_PATH)
                })
                .map(|(number, line)| format!("{file}:{}: {}", number + 1, line.trim()))
                .collect::<Vec<_>>()
        });
    assert_none("paths of one machine, or names of registries", found);
}

#[test]
fn shell_scripts_stop_at_the_first_failure() {
    let found = committed_files()
        .into_iter()
        // cargo-deb adds text to these, which is for `sh` without `-u`.
        .filter(|(file, _)| !file.starts_with("deploy/release/debian/"))
        .filter(|(file, text)| {
            let name = file.rsplit('/').next().unwrap_or_default();
            let is_named_so = name.ends_with(".sh") || name.ends_with(".bash");
            is_named_so || text.lines().next().is_some_and(is_shell_shebang)
        })
        .filter(|(_, text)| {
            let mut lines = text.lines();
            let shebang = lines.next() == Some("#!/usr/bin/env bash");
            let first = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
            !shebang || first != Some("set -euo pipefail")
        })
        .map(|(file, _)| file);
    assert_none(
        "shell scripts that do not begin with `#!/usr/bin/env bash` and `set -euo pipefail`",
        found,
    );
}

fn is_shell_shebang(line: &str) -> bool {
    line.strip_prefix("#!").is_some_and(|interpreter| {
        interpreter.split(['/', ' ']).any(|word| ["sh", "bash", "dash", "zsh"].contains(&word))
    })
}

fn overlong_files(sources: &Sources) -> Vec<String> {
    let lines = sources.iter().map(|(file, text)| (file, text.lines().count()));
    lines
        .filter(|(_, lines)| *lines > MAX_FILE_LINES)
        .map(|(file, lines)| format!("{file}: {lines} lines"))
        .collect()
}

/// The number of the first line of code after the unit tests.
fn line_after_tests(text: &str) -> Option<usize> {
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines.windows(2).position(|pair| {
        let [attribute, item] = pair else {
            return false;
        };
        *attribute == "#[cfg(test)]" && item.starts_with("mod ") && item.ends_with('{')
    })?;
    let after = without_tests(&lines[tests..].join("\n"));
    after.first().map(|(line, _)| tests + line)
}

/// The module whose layer a file has. The library's root has none.
fn layer_name(file: &str) -> &str {
    let name = file.trim_end_matches(".rs").trim_end_matches("/mod");
    let mut slashes = name.match_indices('/').map(|(position, _)| position);
    let first_two = slashes.nth(1).map_or(name, |second| &name[..second]);
    match name.split_once('/') {
        Some(("client", rest)) if rest != "main" => "client",
        Some(("archive", _)) => "archive",
        Some(("mcp", _)) => "mcp",
        _ => first_two,
    }
}

/// The index of a module's layer.
fn layer_index(part: &str) -> usize {
    LAYERS
        .iter()
        .position(|line| line.contains(&part))
        .unwrap_or_else(|| panic!("{part} is in no layer: add it to LAYERS in tests/tidy.rs"))
}

fn exception_for(use_: &ModuleUse) -> Option<&'static (&'static str, &'static str, &'static str)> {
    EXCEPTIONS.iter().find(|(from, to, _)| use_.from.starts_with(from) && use_.to.starts_with(to))
}

/// Whether the used module is generated from the contract.
fn is_generated(use_: &ModuleUse) -> bool {
    use_.module.split("::").next() == Some("api")
}

/// All uses of one file of the package by another.
fn module_uses() -> BTreeSet<ModuleUse> {
    Modules::find(&package_files(), &CRATES, without_tests).module_uses(CRATES[0], LIBRARY)
}

fn describe(use_: &ModuleUse) -> String {
    format!("{}:{} uses {}", use_.from, use_.line, use_.module)
}

/// Whether a use is neither downwards nor within a layer. Generated types have a rule of their own.
fn is_upward(use_: &ModuleUse) -> bool {
    if is_generated(use_) || exception_for(use_).is_some() {
        return false;
    }
    let (from, to) = (layer_name(&use_.from), layer_name(&use_.to));
    from != to && layer_index(from) >= layer_index(to)
}

/// Fails with a list of all findings.
#[track_caller]
pub(crate) fn assert_none(what: &str, found: impl IntoIterator<Item = impl std::fmt::Display>) {
    let found: Vec<String> = found.into_iter().map(|finding| format!("  {finding}\n")).collect();
    assert!(found.is_empty(), "{what}:\n{}", found.concat());
}
