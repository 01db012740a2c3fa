//! Containers and pods of ordinary use, with Podman and runc: the rows of docs/containers.md.

mod pod;
mod scripts;

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown, symlink},
    path::Path,
    process::{Command, Output},
    sync::OnceLock,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use self::scripts::{ATTEMPTS, DAEMON_SCRIPT};
use crate::support::{DOCKER_SECCOMP, copy_program, run_setup_script, stripped_binary};

/// The documentation page with the table of rows.
const CONTAINERS_PAGE: &str = include_str!("../../../docs/containers.md");
/// Podman settings for machines like the test machine.
const CONTAINERS_CONF: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/levels/podman/containers.conf");
/// An image of empty directories. The host's `/usr` is mounted in its containers.
const IMAGE: &str = "localhost/jig-test-levels:1";
/// Flags of the table's columns.
const COLUMN_FLAGS: [&str; 3] = ["", "--minimum-level L1", "--minimum-level L1 --chown-workspace"];
/// Placeholders in options for files of a test.
const DOCKER_PROFILE_PLACEHOLDER: &str = "@PROFILE@";
const VOLUME_PLACEHOLDER: &str = "@VOLUME@";

/// A container of the table.
struct Row {
    /// First column of the row.
    name: &'static str,
    options: &'static [&'static str],
    /// Path of the workspace, and its owner if it is a volume.
    workspace: (&'static str, Option<u32>),
    /// The level of commands with each column's flags, or a text in the reason why there is none.
    expected: [Result<&'static str, &'static str>; 3],
}

const ROWS: &[Row] = &[
    Row {
        name: "`podman run`, root",
        options: &[],
        workspace: ("/work", None),
        expected: [Err("--chown-workspace --minimum-level L1"), Err("--chown-workspace"), Ok("L2")],
    },
    Row {
        name: "`docker run`, root",
        options: &["--security-opt", DOCKER_PROFILE_PLACEHOLDER],
        workspace: ("/work", None),
        expected: [Err("--chown-workspace --minimum-level L1"), Err("--chown-workspace"), Ok("L1")],
    },
    Row {
        name: "CI runner: Docker, root, checkout mounted",
        options: &["--security-opt", DOCKER_PROFILE_PLACEHOLDER, "--volume", VOLUME_PLACEHOLDER],
        workspace: ("/volume", Some(0)),
        expected: [Err("--chown-workspace --minimum-level L1"), Err("--chown-workspace"), Ok("L1")],
    },
    Row {
        name: "root, `seccomp=unconfined`, `unmask=ALL`",
        options: &["--security-opt", "seccomp=unconfined", "--security-opt", "unmask=ALL"],
        workspace: ("/work", None),
        expected: [Err("--chown-workspace"), Err("--chown-workspace"), Ok("L3")],
    },
    Row {
        name: "root, `--cap-drop=ALL`",
        options: &["--cap-drop", "ALL"],
        workspace: ("/work", None),
        expected: [Err("--user 1000:1000"), Err("--user 1000:1000"), Err("CAP_CHOWN")],
    },
    Row {
        name: "`podman run --user 1000:1000`",
        options: &["--user", "1000:1000"],
        workspace: ("/open", None),
        expected: [Err("--minimum-level L2"), Ok("L2"), Ok("L2")],
    },
    Row {
        name: "`--user 1000:1000`, `seccomp=unconfined`, `unmask=ALL`",
        options: &[
            "--user",
            "1000:1000",
            "--security-opt",
            "seccomp=unconfined",
            "--security-opt",
            "unmask=ALL",
        ],
        workspace: ("/open", None),
        expected: [Ok("L3"), Ok("L3"), Ok("L3")],
    },
    Row {
        name: "devcontainer: Docker, user 1000, sources mounted",
        options: &[
            "--user",
            "1000:1000",
            "--security-opt",
            DOCKER_PROFILE_PLACEHOLDER,
            "--volume",
            VOLUME_PLACEHOLDER,
        ],
        workspace: ("/volume", Some(1000)),
        expected: [Err("--minimum-level L1"), Ok("L1"), Ok("L1")],
    },
    Row {
        name: "`--privileged`, own file system",
        options: &["--privileged"],
        workspace: ("/work", None),
        expected: [Err("--chown-workspace"), Err("--chown-workspace"), Ok("L3")],
    },
    Row {
        name: "`--privileged`, volume",
        options: &["--privileged", "--volume", VOLUME_PLACEHOLDER],
        workspace: ("/volume", Some(0)),
        expected: [Ok("L3"), Ok("L3"), Ok("L3")],
    },
];

/// Rows of pods: first column, whether they have Docker's profile, and the level of commands.
const PODS: &[(&str, bool, [Option<&str>; 3])] = &[
    (
        "pod: sidecar, user 1000, all capabilities dropped, `emptyDir`",
        false,
        [None, Some("L2"), Some("L2")],
    ),
    (
        "the same pod with Docker's profile, as `RuntimeDefault`",
        true,
        [None, Some("L1"), Some("L1")],
    ),
];

pub(super) fn podman_command() -> Command {
    let mut podman = Command::new("podman");
    podman.env("CONTAINERS_CONF", CONTAINERS_CONF);
    podman
}

pub(super) fn run_successfully(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// Installs the programs and imports the image, once per test process.
fn ensure_image() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        run_setup_script("tests/levels/install.sh");
        if run_successfully(podman_command().args(["images", "--quiet", IMAGE])).stdout.is_empty() {
            import_image();
        }
    });
}

fn import_image() {
    let directory = create_directory();
    let root = directory.path().join("root");
    for (name, mode) in [
        ("usr", 0o755),
        ("etc", 0o755),
        ("tmp", 0o1777),
        ("proc", 0o755),
        ("dev", 0o755),
        ("sys", 0o755),
        ("run", 0o755),
        ("root", 0o700),
        ("work", 0o755),
        ("open", 0o1777),
    ] {
        fs::create_dir_all(root.join(name)).unwrap();
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    for name in ["bin", "sbin", "lib", "lib32", "lib64"] {
        if let Ok(target) = fs::read_link(Path::new("/").join(name)) {
            symlink(target, root.join(name)).unwrap();
        }
    }

    fs::write(root.join("work/file"), "of the image\n").unwrap();
    let archive = directory.path().join("root.tar");
    let mut tar = Command::new("tar");
    run_successfully(tar.arg("-C").arg(&root).arg("-cf").arg(&archive).arg("."));
    let path = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    run_successfully(podman_command().args(["import", "--change", path]).arg(&archive).arg(IMAGE));
}

pub(super) fn create_directory() -> TempDir {
    tempfile::Builder::new()
        .prefix("jig-test-podman-")
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir()
        .unwrap()
}

/// Files of a container: the client, which contains the daemon, Docker's profile and a volume.
fn create_container_files(owner: u32) -> TempDir {
    let directory = create_directory();
    for name in ["jig", "volume"] {
        fs::create_dir(directory.path().join(name)).unwrap();
    }

    let program = stripped_binary("jig", Path::new(env!("CARGO_BIN_EXE_jig")));
    copy_program(&program, &directory.path().join("jig/jig"));
    let volume = directory.path().join("volume");
    fs::write(volume.join("file"), "of the host\n").unwrap();
    for path in [volume.join("file"), volume] {
        chown(path, Some(owner), Some(owner)).unwrap();
    }

    fs::write(directory.path().join("profile.json"), docker_profile_json()).unwrap();
    directory
}

/// Docker's default profile, in the form that engines read.
fn docker_profile_json() -> String {
    let data: Value = serde_json::from_str(DOCKER_SECCOMP).unwrap();
    let mut rules = data["rules"].clone();
    for rule in rules.as_array_mut().unwrap() {
        let rule = rule.as_object_mut().unwrap();
        for (our_key, engine_key) in [("with", "includes"), ("without", "excludes")] {
            if let Some(capabilities) = rule.remove(our_key) {
                rule.insert(engine_key.to_owned(), json!({"caps": capabilities}));
            }
        }
    }

    let profile = json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "syscalls": rules,
    });

    profile.to_string()
}

/// For each set of flags: the fields of the result line, and the log line.
fn run_with_each_flag_set(row: &Row) -> Vec<(Vec<String>, String)> {
    let files = create_container_files(row.workspace.1.unwrap_or(0));
    let path_of = |name: &str| files.path().join(name).display().to_string();
    let options = row.options.iter().map(|option| match *option {
        DOCKER_PROFILE_PLACEHOLDER => format!("seccomp={}", path_of("profile.json")),
        VOLUME_PLACEHOLDER => format!("{}:/volume", path_of("volume")),
        option => option.to_owned(),
    });
    let mut command = podman_command();
    command
        .args(["run", "--rm", "--network", "none", "--timeout", "300"])
        .args(["--volume", "/usr:/usr:ro"])
        .args(["--volume", &format!("{}:/jig:ro", path_of("jig"))])
        .args(["--env", &format!("W={}", row.workspace.0)])
        .args(["--env", &format!("ATTEMPTS={ATTEMPTS}")])
        .args(options)
        .args([IMAGE, "sh", "-c", DAEMON_SCRIPT, "sh"])
        .args(COLUMN_FLAGS);

    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let fields = |line: &str| line.split('\t').map(str::to_owned).collect::<Vec<_>>();
    let lines: Vec<_> = text.lines().map(fields).collect();
    assert_eq!(lines.len(), 2 * COLUMN_FLAGS.len(), "{}: {output:?}", row.name);

    let pairs = lines.chunks(2);
    pairs.map(|pair| (pair[0].clone(), pair[1][1].clone())).collect()
}

/// Checks that a container gives the documented level. Commands run and write, and reach nothing
/// that belongs to the daemon.
fn check_row(row: &Row) {
    ensure_image();
    for ((fields, log), (expected, flags)) in
        run_with_each_flag_set(row).into_iter().zip(row.expected.iter().zip(COLUMN_FLAGS))
    {
        let context = format!("{} with {flags:?}: {fields:?} {log}", row.name);
        match expected {
            Ok(level) => {
                assert_eq!(fields[0], "ran", "{context}");
                let response: Value = serde_json::from_str(&fields[1]).unwrap();
                assert_eq!(response["isolation"], *level, "{context}");
                let output = response["stdout"].as_str().unwrap();
                let (user, rest) = output.split_once('\n').unwrap();
                assert_ne!(user, "0", "{context}");
                assert_eq!(rest, "written\n0\n0\nend\n", "{context}");
                assert_eq!(fields[2..], ["tool command ", "written ", "yes"], "{context}");
                assert_eq!(log.is_empty(), *level == "L3", "{context}");
            }
            Err(reason) => {
                assert_eq!(fields[0], "refused", "{context}");
                assert!(format!("{} {log}", fields[1]).contains(reason), "{context}");
            }
        }

        if !log.is_empty() {
            assert!(log.contains("found: Podman container, "), "{context}");
        }
    }
}

macro_rules! rows {
    ($($test:ident: $row:literal),* $(,)?) => {
        $(#[test]
        fn $test() {
            check_row(&ROWS[$row]);
        })*

        #[test]
        fn each_row_is_a_test() {
            assert_eq!([$($row),*], std::array::from_fn::<usize, { ROWS.len() }, _>(|row| row));
        }
    };
}

rows! {
    podman_defaults: 0,
    docker_defaults: 1,
    ci_runner: 2,
    root_unconfined: 3,
    root_without_capabilities: 4,
    ordinary_user: 5,
    ordinary_user_unconfined: 6,
    devcontainer: 7,
    privileged_on_its_own_file_system: 8,
    privileged_on_a_volume: 9,
}

/// In a project's directory in a default container, without a daemon.
#[test]
fn jig_run_suggests_flags_that_work() {
    ensure_image();
    let files = create_container_files(0);
    let script = r#"
        cd /work
        refused=$(/jig/jig run -- id -u 2>&1)
        echo "$refused"
        flags=$(echo "$refused" | sed -n 's/.*Retry with the isolation that this host permits: jig run \(.*\) …/\1/p')
        /jig/jig run $flags -- sh -c 'id -u; echo written > file; cat file'
        ls -n file | cut -d' ' -f3
    "#;

    let mut command = podman_command();
    command
        .args(["run", "--rm", "--network", "none", "--timeout", "300"])
        .args(["--volume", "/usr:/usr:ro"])
        .args(["--volume", &format!("{}:/jig:ro", files.path().join("jig").display())])
        .args([IMAGE, "sh", "-c", script]);
    let output = run_successfully(&mut command);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let host =
        "this host (Podman container, root without CAP_SYS_ADMIN, seccomp profile, masked /proc)";
    assert!(stdout.contains(host), "{stdout}");

    let suggestion = "Retry with the isolation that this host permits: jig run --chown-workspace --minimum-level L1 …\n";
    assert!(stdout.contains(suggestion), "{stdout}");
    assert!(stdout.ends_with("61000\nwritten\n61000\n"), "{stdout}");

    let note = String::from_utf8_lossy(&output.stderr);
    assert!(note.contains("belong to user 61000 now (--chown-workspace)"), "{note}");
}

#[test]
fn documentation_lists_these_rows() {
    let cell = |level: &Result<&'static str, &'static str>| level.unwrap_or("–");
    let mut expected: Vec<_> = ROWS
        .iter()
        .map(|row| {
            let [first, second, third] = &row.expected;
            let levels = [cell(first), cell(second), cell(third)];
            format!("| {} | {} |", row.name, levels.join(" | "))
        })
        .collect();

    expected.extend(PODS.iter().map(|(name, _, levels)| {
        let levels = levels.map(|level| level.unwrap_or("–"));
        format!("| {name} | {} |", levels.join(" | "))
    }));
    let rows = CONTAINERS_PAGE.lines().filter(|line| line.starts_with("| "));
    let rows: Vec<_> = rows.skip(1).collect();
    assert_eq!(rows, expected);
}
