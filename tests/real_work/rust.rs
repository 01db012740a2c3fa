//! Rust, with the toolchain of the host shown read-only.

use std::{path::PathBuf, process::Command};

use super::{MOUNTED_DIRECTORY, run_script, with_each_daemon};
use crate::support::Setup;

with_each_daemon!(cargo_builds_and_tests);

/// Where the toolchain that builds these tests lies.
fn toolchain() -> PathBuf {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().into()
}

async fn cargo_builds_and_tests(setup: Setup) {
    let path = format!("{MOUNTED_DIRECTORY}/bin");
    let setup = setup.mounting_directory(&toolchain()).arguments(&["--path", &path]);
    let daemon = setup.start().await;

    let script = r#"
cargo new --quiet --lib sample && cd sample
mkdir part && cat > part/Cargo.toml <<'END'
[package]
name = "part"
version = "0.1.0"
edition = "2021"
END
mkdir part/src && echo 'pub fn seven() -> u32 { 7 }' > part/src/lib.rs
echo 'part = { path = "part" }' >> Cargo.toml
cat > build.rs <<'END'
fn main() { println!("cargo::rustc-env=MADE_BY=build script"); }
END
cat > src/lib.rs <<'END'
//! ```
//! assert_eq!(sample::answer(), 42);
//! ```
pub fn answer() -> u32 { std::thread::scope(|scope| scope.spawn(|| 6 * part::seven()).join().unwrap()) }
#[test]
fn it_answers() { assert_eq!(answer(), 42); assert_eq!(env!("MADE_BY"), "build script"); }
END
mkdir src/bin && echo 'fn main() { println!("{}", sample::answer()) }' > src/bin/main.rs
cargo build --quiet --offline; cargo run --quiet --offline
cargo test --offline 2>&1 | grep -c '1 passed'
cargo metadata --quiet --offline --format-version 1 | head -c 12; echo; test -d "$HOME/.cargo"; git status --short | grep -c '^??'
"#;
    let output = run_script(&daemon, script).await;
    assert_eq!(output, "42\n2\n{\"packages\":\n6\n");
}
