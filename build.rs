//! Compiles `proto/` into `$OUT_DIR`: the Rust types, and the descriptors with all comments and
//! options. Uses protox and needs no `protoc`.
//!
//! Sets the environment of rustc: `JIG_VERSION` for `--version`, and `JIG_COMMIT` and
//! `JIG_COMMIT_DATE`, which are empty if the commit is unknown.

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const PROTO_FILES: [&str; 14] = [
    "jig/v1/approval_service.proto",
    "jig/v1/artifact_service.proto",
    "jig/v1/catalog_service.proto",
    "jig/v1/daemon_service.proto",
    "jig/v1/event_service.proto",
    "jig/v1/fleet.proto",
    "jig/v1/invoke_service.proto",
    "jig/v1/job_service.proto",
    "jig/v1/options.proto",
    "jig/v1/process_service.proto",
    "jig/v1/tool_service.proto",
    "jig/v1/transfer_service.proto",
    "jig/v1/watch_service.proto",
    "jig/v1/workspace_service.proto",
];

/// The process service of the Kubernetes agent-sandbox runtime. It has descriptors of its own: it is
/// no part of the contract.
const AGENT_SANDBOX_FILES: [&str; 1] = ["process/v1/process.proto"];

/// Hash and date of the commit in an archive of `git archive`, which replaces the placeholder.
const ARCHIVED_COMMIT: &str = "$Format:%H %cs$";
/// Hexadecimal digits of the commit in `--version`, as rustc prints.
const SHORT_COMMIT_DIGITS: usize = 9;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);

    compile(&PROTO_FILES, &out_dir.join("jig.v1.bin"))?;
    compile(&AGENT_SANDBOX_FILES, &out_dir.join("process.v1.bin"))?;
    build_warm_shell(&out_dir.join("warm_shell.so"))?;
    set_version()
}

/// Compiles the library of warm shells. Other architectures have none: the file is empty.
fn build_warm_shell(library: &Path) -> Result<(), Box<dyn Error>> {
    const SOURCE: &str = "daemon/sys/warm_shell.c";
    println!("cargo:rerun-if-changed={SOURCE}");
    if env::var("CARGO_CFG_TARGET_ARCH")? != "x86_64" || env::var("CARGO_FEATURE_DAEMON").is_err() {
        return Ok(fs::write(library, [])?);
    }

    // It has no libc, and must need no relocation: the dynamic loader does not see its copy.
    let compiler =
        cc::Build::new().cargo_metadata(false).no_default_flags(true).try_get_compiler()?;
    let status = compiler
        .to_command()
        .args(["-Os", "-Wall", "-Wextra", "-Werror", "-std=gnu11", "-fPIC", "-ffreestanding"])
        .args(["-fno-builtin", "-fno-stack-protector", "-fcf-protection=none"])
        // Vector registers would keep the mark of `marked_receive` when the shell starts.
        .arg("-mgeneral-regs-only")
        .args(["-fno-asynchronous-unwind-tables", "-nostdlib", "-shared"])
        .args(["-Wl,-z,noseparate-code", "-Wl,--hash-style=gnu", "-Wl,--build-id=none"])
        .args(["-Wl,-z,defs", "-Wl,-z,text", "-o"])
        .arg(library)
        .arg(SOURCE)
        .status()?;
    if status.success() { Ok(()) } else { Err("the C compiler failed".into()) }
}

fn set_version() -> Result<(), Box<dyn Error>> {
    let version = env::var("CARGO_PKG_VERSION")?;
    let source = source_commit().unwrap_or_default();
    let (commit, date) = source.split_once(' ').unwrap_or_default();

    let version = match commit.get(..SHORT_COMMIT_DIGITS) {
        Some(short) => format!("{version} ({short} {date})"),
        None => version,
    };
    println!("cargo:rustc-env=JIG_VERSION={version}");
    println!("cargo:rustc-env=JIG_COMMIT={commit}");
    println!("cargo:rustc-env=JIG_COMMIT_DATE={date}");
    Ok(())
}

/// Hash and date of the commit: from the variable `JIG_SOURCE_COMMIT`, an archive, or git.
///
/// Debug builds do not ask git: each commit would build the crate anew.
fn source_commit() -> Option<String> {
    println!("cargo:rerun-if-env-changed=JIG_SOURCE_COMMIT");
    if let Ok(commit) = env::var("JIG_SOURCE_COMMIT") {
        return Some(commit);
    }
    if !ARCHIVED_COMMIT.starts_with('$') {
        return Some(ARCHIVED_COMMIT.to_owned());
    }

    // Not the repository of a directory above.
    let is_checkout = Path::new(".git").exists();
    let is_debug_build = env::var("PROFILE").is_ok_and(|profile| profile == "debug");
    if !is_checkout || is_debug_build {
        return None;
    }
    // In a worktree, these files are not below `.git`. Each commit and checkout adds to the log.
    for name in ["HEAD", "logs/HEAD"] {
        let file = git(&["rev-parse", "--git-path", name])?;
        if Path::new(&file).exists() {
            println!("cargo:rerun-if-changed={file}");
        }
    }
    git(&["show", "--no-patch", "--format=%H %cs", "HEAD"])
}

/// Output of git without the line end. `None` without git, or if it fails.
#[expect(clippy::disallowed_methods, reason = "a program of the build, not a child of the daemon")]
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}

/// Compiles files with their imports, and writes their descriptors to `descriptors`.
fn compile(files: &[&str], descriptors: &Path) -> Result<(), Box<dyn Error>> {
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true).open_files(files)?;

    // protox encodes the descriptors because prost's descriptor types drop custom options.
    fs::write(descriptors, compiler.encode_file_descriptor_set())?;

    tonic_prost_build::configure()
        .bytes(".")
        // Ordered maps, so that equal requests have equal encodings.
        .btree_map(".")
        .server_mod_attribute(".", "#[cfg(feature = \"daemon\")]")
        .client_mod_attribute(".", "#[cfg(feature = \"client\")]")
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
