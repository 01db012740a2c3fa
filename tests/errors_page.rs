//! docs/operate/errors.md: the table of reasons in the code. `JIG_UPDATE_PAGES=1` rewrites it.

use std::{fs, path::Path, process::Command};

use jig::api::reason::{Reason, code_name};

/// The heading of the generated part, which ends the page.
const HEADING: &str = "## Reasons\n";

#[test]
fn errors_page_shows_the_table_of_reasons() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operate/errors.md");
    let page = fs::read_to_string(&file).unwrap();
    let (introduction, _) = page.split_once(HEADING).unwrap();

    let mut expected = format!(
        "{introduction}{HEADING}\n| reason | gRPC code | meaning | caller | operator |\n|---|---|---|---|---|\n"
    );
    for reason in Reason::ALL {
        expected += &format!(
            "| `{reason}` | `{}` | {} | {} | {} |\n",
            code_name(reason.code()),
            reason.meaning(),
            reason.suggestion(),
            reason.remedy(),
        );
    }

    if std::env::var_os("JIG_UPDATE_PAGES").is_some() {
        fs::write(&file, &expected).unwrap();
    }
    assert!(
        page == expected,
        "docs/operate/errors.md differs from api/reason.rs. Rewrite it with: JIG_UPDATE_PAGES=1 cargo test errors_page"
    );
}

#[test]
fn explain_prints_what_the_page_says() {
    let explain = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_jig"))
            .arg("explain")
            .args(arguments)
            .env_clear()
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };

    let (code, page, _) = explain(&["sandbox_unavailable"]);
    let reason = Reason::SandboxUnavailable;
    assert_eq!(code, Some(0));
    for text in [reason.meaning(), reason.remedy(), "FAILED_PRECONDITION", "ToolService/Run "] {
        assert!(page.contains(text), "{text} is missing in: {page}");
    }

    let (code, list, _) = explain(&[]);
    assert_eq!((code, list.lines().count()), (Some(0), Reason::ALL.len()));

    let (code, _, error) = explain(&["NO_SUCH_REASON"]);
    assert_eq!(code, Some(64));
    assert!(error.contains("`jig explain` lists all reasons"), "{error}");
}
