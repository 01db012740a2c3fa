//! Settings of logs and traces, and the `[audit]` table.

use std::path::Path;

use super::{
    args::Args,
    file::{AuditTable, ConfigFile},
    parse_or_default::parse_or_default,
};
use crate::daemon::telemetry::{
    audit::AuditSettings, content::ContentCapture, logs::LogFormat, propagation::RemoteContextTrust,
};

/// Size at which the audit log is rotated.
const DEFAULT_AUDIT_BYTES: u64 = 64 << 20;
/// Smallest size at which the audit log can be rotated.
const MIN_AUDIT_BYTES: u64 = 1 << 20;
/// Rotated files of the audit log.
const DEFAULT_AUDIT_FILES: u32 = 8;
/// Most rotated files of the audit log. A rotation renames each of them.
const MAX_AUDIT_FILES: u32 = 1000;

/// The checked settings of logs and traces.
#[derive(Debug, Clone)]
pub(crate) struct TelemetryConfig {
    pub(crate) log_format: LogFormat,
    /// Most detailed level of the daemon's own logs.
    pub(crate) log_level: tracing::Level,
    /// Whether each call writes a log line.
    pub(crate) log_calls: bool,
    pub(crate) remote_context: RemoteContextTrust,
    pub(crate) capture: ContentCapture,
    /// The audit log, if there is one.
    pub(crate) audit: Option<AuditSettings>,
}

/// Merges and checks the settings.
pub(super) fn parse_telemetry(
    args: &mut Args,
    file: &mut ConfigFile,
    problems: &mut Vec<String>,
) -> TelemetryConfig {
    let log = args.log.take().or(file.log.take());
    let log_level = args.log_level.take().or(file.log_level.take());
    let trust = args.trust_remote_context.take().or(file.trust_remote_context.take());
    let capture = args.capture_content.take().or(file.capture_content.take());
    let table = std::mem::take(&mut file.audit);
    let table = AuditTable { path: args.audit_log.take().or(table.path), ..table };

    TelemetryConfig {
        log_format: parse_or_default(log.as_deref(), LogFormat::for_stderr(), problems, |text| {
            match text {
                "text" => Ok(LogFormat::Text),
                "json" => Ok(LogFormat::Json),
                _ => Err(format!("--log {text}: give text or json")),
            }
        }),
        log_level: parse_or_default(log_level.as_deref(), tracing::Level::INFO, problems, |text| {
            text.parse()
                .map_err(|_| format!("--log-level {text}: give error, warn, info, debug or trace"))
        }),
        log_calls: args.log_calls || file.log_calls.unwrap_or(false),
        remote_context: parse_or_default(
            trust.as_deref(),
            RemoteContextTrust::default(),
            problems,
            |text| match text {
                "parent" => Ok(RemoteContextTrust::Parent),
                "link" => Ok(RemoteContextTrust::Link),
                "ignore" => Ok(RemoteContextTrust::Ignore),
                _ => Err(format!("--trust-remote-context {text}: give parent, link or ignore")),
            },
        ),
        capture: parse_or_default(
            capture.as_deref(),
            ContentCapture::default(),
            problems,
            |text| match text {
                "off" => Ok(ContentCapture::Off),
                "truncated" => Ok(ContentCapture::Truncated),
                "full" => Ok(ContentCapture::Full),
                _ => Err(format!("--capture-content {text}: give off, truncated or full")),
            },
        ),
        audit: parse_audit(table, problems),
    }
}

fn parse_audit(table: AuditTable, problems: &mut Vec<String>) -> Option<AuditSettings> {
    let AuditTable { path, max_bytes, max_files, fsync } = table;
    let max_bytes = max_bytes.unwrap_or(DEFAULT_AUDIT_BYTES);
    if (1..MIN_AUDIT_BYTES).contains(&max_bytes) {
        problems.push(format!(
            "audit.max_bytes {max_bytes}: give at least {MIN_AUDIT_BYTES}, or 0 if another program rotates the file"
        ));
    }
    let max_files = max_files.unwrap_or(DEFAULT_AUDIT_FILES);
    if max_files > MAX_AUDIT_FILES {
        problems.push(format!("audit.max_files {max_files}: give at most {MAX_AUDIT_FILES}"));
    }

    let path = path?;
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    if path.file_name().is_none() || !directory.is_dir() {
        problems.push(format!(
            "--audit-log {}: {} is no directory: create it",
            path.display(),
            directory.display()
        ));
    }
    Some(AuditSettings { path, max_bytes, max_files, fsync })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_settings_are_checked() {
        let parse = |table: AuditTable| {
            let mut problems = Vec::new();
            let settings = parse_audit(table, &mut problems);
            (settings, problems.join("\n"))
        };
        assert_eq!(parse(AuditTable::default()), (None, String::new()));

        let path = Some(std::path::PathBuf::from("/tmp/audit.jsonl"));
        let (settings, problems) = parse(AuditTable { path: path.clone(), ..Default::default() });
        assert_eq!((settings.unwrap().max_bytes, problems.as_str()), (64 << 20, ""));

        let (_, problems) = parse(AuditTable { path: Some("/no/a".into()), ..Default::default() });
        assert!(problems.contains("/no is no directory"), "{problems}");
        let (_, problems) =
            parse(AuditTable { path, max_bytes: Some(1000), max_files: Some(2000), fsync: true });
        assert!(problems.contains("max_bytes") && problems.contains("max_files"), "{problems}");
    }
}
