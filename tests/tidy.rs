//! The rules of this repository: what review would otherwise have to see each time.

mod docs;
mod files;
mod imports;
mod tokens;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use self::{
    files::{committed_files, package_files, read, rust_files},
    imports::{Arrow, Modules, Sources, circles},
    tokens::{Token, tokens_of, without_tests},
};

/// Lines that a source file may have, whatever is in it: long tests go to a file of their own.
const MOST_LINES: usize = 500;

/// The roots of the package's crates, the library first.
const CRATES: [&str; 3] = ["lib.rs", "daemon/main.rs", "client/main.rs"];
/// Name under which the other crates know the library.
const LIBRARY: &str = "jig";

/// The parts of the package from top to bottom. Each may use those in the lines below its own, and
/// nothing else but itself.
const ORDER: &[&[&str]] = &[
    &["client/main"],
    &["client", "daemon/main"],
    &["daemon"],
    &["daemon/fuzz", "daemon/start"],
    &["daemon/key_admin", "daemon/server"],
    &["daemon/grpc"],
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
];

/// Arrows up that are allowed: from, to (each with everything below), and why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "daemon/config",
        "daemon/netpolicy/rules",
        "plain data: where the configuration lets commands and calls connect to",
    ),
    (
        "daemon/config",
        "daemon/sandbox/plan.rs",
        "plain data: what of the configuration the launcher is sent",
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

/// Where what is generated from the contract may be used, and why.
const WIRE_TYPES: &[(&str, &str)] = &[
    ("client/", "the other side of the contract"),
    ("daemon/pipeline/", "generic over requests and responses"),
    ("daemon/catalog/", "reads the descriptors and their options"),
    ("daemon/grpc/", "translates"),
    (
        "daemon/server/mod.rs",
        "registers the generated services, and the descriptors for reflection",
    ),
    ("daemon/tool/", "takes typed requests, gives typed responses"),
];

/// Names that say nothing about what is in a file.
const EMPTY_NAMES: &[&str] =
    &["common", "helper", "helpers", "misc", "shared", "stuff", "types", "util", "utils"];

// Written so that this file does not break its own rules.
const MACHINE_PATHS: &[&str] =
    &[concat!("/wo", "rk/main"), concat!("/wo", "rk/shared"), concat!("/tmp/", "wt/")];
/// The home of whoever wrote it. Tests try to reach it from within a sandbox.
const HOME_PATH: &str = concat!("/ro", "ot/");
const REGISTRIES: &[&str] = &[
    concat!("crates", ".io"),
    concat!("npmjs", ".org"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("proxy.golang", ".org"),
];
const LEFT_OPEN: &[&str] = &[concat!("FIX", "ME"), concat!("XX", "X")];

#[test]
fn every_rust_file_opens_by_saying_what_it_is() {
    let silent = rust_files()
        .into_iter()
        .filter(|(_, text)| !text.starts_with("//! "))
        .map(|(file, _)| file);
    none("Rust files that do not open with `//! `", silent);
}

#[test]
fn no_source_file_is_too_long() {
    none("source files with more than 500 lines", too_long(&rust_files()));
    let lines = |count| ("tests/x.rs".to_owned(), "//! x\n".repeat(count));
    assert_eq!(too_long(&Sources::from([lines(500)])), [""; 0]);
    assert_eq!(too_long(&Sources::from([lines(501)])), ["tests/x.rs: 501 lines"]);
}

#[test]
fn tests_beside_the_code_stand_last() {
    let sources = rust_files();
    let found = sources.iter().filter_map(|(file, text)| {
        let line = line_after_tests(text)?;
        Some(format!("{file}:{line}"))
    });
    none("code after its tests", found);
    let tests = "//! x\n#[cfg(test)]\nmod tests {\n}\n";
    assert_eq!(line_after_tests(tests), None);
    assert_eq!(line_after_tests(&format!("{tests}fn f() {{}}\n")), Some(5));
}

#[test]
fn unsafe_code_stands_in_sys_alone() {
    let found = rust_files()
        .into_iter()
        .filter(|(file, _)| !file.starts_with("daemon/sys/"))
        .flat_map(|(file, text)| {
            tokens_of(&text)
                .into_iter()
                .filter(|(_, token)| *token == Token::Word("unsafe".into()))
                .map(move |(line, _)| format!("{file}:{line}"))
        });
    none("`unsafe` outside daemon/sys", found);
}

#[test]
fn no_file_has_a_name_that_says_nothing() {
    let found = committed_files().into_keys().filter(|file| {
        Path::new(file).components().any(|part| {
            let part = part.as_os_str().to_string_lossy();
            EMPTY_NAMES.contains(&part.split('.').next().unwrap_or_default())
        })
    });
    none("files or folders with a name that says nothing", found);
}

#[test]
fn every_source_file_is_part_of_a_crate() {
    let sources = package_files();
    let modules = Modules::find(&sources, &CRATES, tokens_of);
    let known = modules.files();
    let forgotten =
        sources.keys().filter(|file| *file != "build.rs" && !known.contains(file.as_str()));
    none("source files that no crate has as a module", forgotten);
}

#[test]
fn imports_run_one_way() {
    let arrows = arrows();
    none(
        "uses of a part that stands above or beside (see ORDER in tests/tidy.rs)",
        arrows.iter().filter(|arrow| is_upward(arrow)).map(describe),
    );
    let unused = EXCEPTIONS
        .iter()
        .filter(|exception| !arrows.iter().any(|arrow| excuse(arrow) == Some(*exception)));
    none(
        "exceptions that nothing needs any more",
        unused.map(|(from, to, _)| format!("{from} → {to}")),
    );
}

#[test]
fn arrows_up_and_to_the_side_are_told_from_those_down() {
    let goes_up = |from: &str, to: &str, module: &str| {
        is_upward(&Arrow {
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
        assert!(goes_up(from, to, "daemon"), "{from} → {to}");
    }
    for (from, to) in [
        ("daemon/grpc/run.rs", "daemon/sys/mod.rs"),
        ("daemon/grpc/run.rs", "daemon/grpc/status.rs"),
        ("daemon/config/mod.rs", "daemon/sandbox/plan.rs"),
        ("client/main.rs", "daemon/mod.rs"),
        ("client/run.rs", "client/connect.rs"),
    ] {
        assert!(!goes_up(from, to, "daemon"), "{from} → {to}");
    }
    assert!(!goes_up("daemon/sys/mod.rs", "lib.rs", "api::v1"));
}

#[test]
fn no_two_files_use_each_other() {
    let uses = arrows().into_iter().map(|arrow| (arrow.from, arrow.to)).collect();
    let told = circles(&uses).into_iter().map(|circle| circle.join(" → "));
    none("circles between files", told);
}

#[test]
fn no_two_parts_of_a_folder_use_each_other() {
    let mut uses: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
    for arrow in arrows().iter().filter(|arrow| excuse(arrow).is_none()) {
        let from: Vec<&str> = arrow.from.split('/').collect();
        let to: Vec<&str> = arrow.to.split('/').collect();
        let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
        uses.entry(from[..shared].join("/"))
            .or_default()
            .insert((from[shared].to_owned(), to[shared].to_owned()));
    }
    let told = uses.iter().flat_map(|(folder, uses)| {
        circles(uses).into_iter().map(move |circle| format!("{folder}: {}", circle.join(" → ")))
    });
    none("circles within a folder", told);
}

#[test]
fn wire_types_stop_at_the_doors() {
    let arrows = arrows();
    let found = arrows.iter().filter(|arrow| {
        is_generated(arrow)
            && !WIRE_TYPES.iter().any(|(allowed, _)| arrow.from.starts_with(allowed))
    });
    none("uses of generated types below the doors", found.map(describe));
}

#[test]
fn every_reason_of_an_error_is_in_the_contract_and_the_other_way_round() {
    let source = read("daemon/error.rs");
    let names: BTreeSet<&str> = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Self::")?.split_once(" => \""))
        .filter_map(|(_, name)| name.strip_suffix("\","))
        .collect();
    let (_, variants) = source.split_once("pub(crate) enum Reason {").unwrap();
    let (variants, _) = variants.split_once("\n}").unwrap();
    let variants = variants
        .lines()
        .filter(|line| line.starts_with("    ") && line.ends_with(',') && !line.contains("//"));
    assert_eq!(variants.count(), names.len(), "each reason has a name: {names:?}");

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
    none("reasons that no list of errors in the protos names", unlisted);
    let unknown = listed.iter().filter(|name| !names.contains(*name));
    none("reasons in the protos that the daemon does not have", unknown);
}

#[test]
fn paths_in_messages_are_escaped() {
    let found = package_files().into_iter().flat_map(|(file, text)| {
        let bare = |line: &str| line.contains("\\\"{path}") || line.contains("\\\"{name}");
        text.lines()
            .enumerate()
            .filter(|(_, line)| bare(line))
            .map(|(number, _)| format!("{file}:{}", number + 1))
            .collect::<Vec<_>>()
    });
    none("paths between quotation marks without `{:?}`", found);
}

#[test]
fn nothing_is_left_open() {
    let words = committed_files().into_iter().flat_map(|(file, text)| {
        text.lines()
            .enumerate()
            .filter(|(_, line)| LEFT_OPEN.iter().any(|word| line.contains(word)))
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
    none("places that are left open", words.chain(code));
}

#[test]
fn nothing_depends_on_the_machine_it_was_written_on() {
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
    none("paths of one machine, or names of registries", found);
}

#[test]
fn shell_scripts_stop_at_the_first_failure() {
    let found = committed_files()
        .into_iter()
        .filter(|(file, text)| {
            let name = file.rsplit('/').next().unwrap_or_default();
            let by_name = name.ends_with(".sh") || name.ends_with(".bash");
            by_name || text.lines().next().is_some_and(is_shebang_of_a_shell)
        })
        .filter(|(_, text)| {
            let mut lines = text.lines();
            let shebang = lines.next() == Some("#!/usr/bin/env bash");
            let first = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
            !shebang || first != Some("set -euo pipefail")
        })
        .map(|(file, _)| file);
    none(
        "shell scripts that do not begin with `#!/usr/bin/env bash` and `set -euo pipefail`",
        found,
    );
}

fn is_shebang_of_a_shell(line: &str) -> bool {
    line.strip_prefix("#!").is_some_and(|interpreter| {
        interpreter.split(['/', ' ']).any(|word| ["sh", "bash", "dash", "zsh"].contains(&word))
    })
}

fn too_long(sources: &Sources) -> Vec<String> {
    let lines = sources.iter().map(|(file, text)| (file, text.lines().count()));
    lines
        .filter(|(_, lines)| *lines > MOST_LINES)
        .map(|(file, lines)| format!("{file}: {lines} lines"))
        .collect()
}

/// The first line of code behind the tests beside it.
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

/// The part of ORDER that a file belongs to. The library's root belongs to none: what is in it is
/// generated.
fn part(file: &str) -> &str {
    let name = file.trim_end_matches(".rs").trim_end_matches("/mod");
    let mut slashes = name.match_indices('/').map(|(position, _)| position);
    let first_two = slashes.nth(1).map_or(name, |second| &name[..second]);
    match name.split_once('/') {
        Some(("client", rest)) if rest != "main" => "client",
        _ => first_two,
    }
}

/// The line of ORDER that a part stands in.
fn line_of(part: &str) -> usize {
    ORDER
        .iter()
        .position(|line| line.contains(&part))
        .unwrap_or_else(|| panic!("{part} has no place in ORDER in tests/tidy.rs: give it one"))
}

fn excuse(arrow: &Arrow) -> Option<&'static (&'static str, &'static str, &'static str)> {
    EXCEPTIONS.iter().find(|(from, to, _)| arrow.from.starts_with(from) && arrow.to.starts_with(to))
}

/// Whether what is used is generated from the contract.
fn is_generated(arrow: &Arrow) -> bool {
    arrow.module.split("::").next() == Some("api")
}

/// All uses between files of the package.
fn arrows() -> BTreeSet<Arrow> {
    Modules::find(&package_files(), &CRATES, without_tests).arrows(CRATES[0], LIBRARY)
}

fn describe(arrow: &Arrow) -> String {
    format!("{}:{} uses {}", arrow.from, arrow.line, arrow.module)
}

/// Whether the user stands below or beside what it uses. Generated types have a rule of their own.
fn is_upward(arrow: &Arrow) -> bool {
    if is_generated(arrow) || excuse(arrow).is_some() {
        return false;
    }
    let (from, to) = (part(&arrow.from), part(&arrow.to));
    from != to && line_of(from) >= line_of(to)
}

/// Fails with all that was found, not with the first of it.
#[track_caller]
pub(crate) fn none(what: &str, found: impl IntoIterator<Item = impl std::fmt::Display>) {
    let found: Vec<String> = found.into_iter().map(|one| format!("  {one}\n")).collect();
    assert!(found.is_empty(), "{what}:\n{}", found.concat());
}
