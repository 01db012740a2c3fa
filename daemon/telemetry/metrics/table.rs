//! The table of all metrics. The instruments are made from it, and docs/telemetry.md documents it.

use crate::daemon::telemetry::semconv;

/// Buckets of `rpc.server.call.duration`, which the semantic conventions fix.
const RPC_BUCKETS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
/// Buckets of work that may last long.
const WORK_BUCKETS: &[f64] =
    &[0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0];
/// From 1 MiB to 64 GiB, by factors of 4.
const MEMORY_BUCKETS: &[f64] = &[
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
    268_435_456.0,
    1_073_741_824.0,
    4_294_967_296.0,
    17_179_869_184.0,
    68_719_476_736.0,
];

/// A metric: what its instrument is made from.
#[derive(Debug, PartialEq)]
pub(crate) struct MetricSpec {
    pub(super) name: &'static str,
    pub(super) kind: MetricKind,
    /// Unit, as in UCUM.
    pub(super) unit: &'static str,
    pub(super) description: &'static str,
    pub(super) attributes: &'static [&'static str],
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum MetricKind {
    Counter,
    UpDownCounter,
    Gauge,
    /// A histogram with these bucket boundaries.
    Histogram(&'static [f64]),
}

impl MetricSpec {
    /// Boundaries of the buckets, for a histogram.
    pub(super) fn boundaries(&self) -> Vec<f64> {
        match self.kind {
            MetricKind::Histogram(boundaries) => boundaries.to_vec(),
            MetricKind::Counter | MetricKind::UpDownCounter | MetricKind::Gauge => Vec::new(),
        }
    }
}

impl MetricKind {
    /// The kind as documented.
    #[cfg(test)]
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::UpDownCounter => "up-down counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

/// Declares a constant for each metric, and `METRICS` with all of them.
macro_rules! metrics {
    ($($constant:ident = $name:literal, $kind:expr, $unit:literal, [$($attribute:expr),*],
        $description:literal;)*) => {
        $(pub(crate) static $constant: MetricSpec = MetricSpec {
            name: $name,
            kind: $kind,
            unit: $unit,
            description: $description,
            attributes: &[$($attribute),*],
        };)*

        /// All metrics, in the order of the documentation.
        #[cfg(test)]
        static METRICS: &[&MetricSpec] = &[$(&$constant),*];
    };
}

use MetricKind::{Counter, Gauge, Histogram, UpDownCounter};

metrics! {
    RPC_DURATION = "rpc.server.call.duration", Histogram(RPC_BUCKETS), "s",
        [semconv::RPC_SYSTEM_NAME, semconv::RPC_METHOD, semconv::RPC_STATUS_CODE,
            semconv::ERROR_TYPE],
        "duration of RPCs, streams included";
    RPC_ACTIVE = "jig.rpc.active", UpDownCounter, "{call}", [],
        "RPCs in progress, streams included";
    CONNECTIONS = "jig.connection.active", UpDownCounter, "{connection}",
        [semconv::LISTENER],
        "open connections";
    TOOL_DURATION = "gen_ai.execute_tool.duration", Histogram(WORK_BUCKETS), "s",
        [semconv::GEN_AI_OPERATION_NAME, semconv::GEN_AI_TOOL_NAME, semconv::ERROR_TYPE],
        "duration of tool calls, without the time in queues";
    TOOL_CALLS = "jig.tool.calls", Counter, "{call}",
        [semconv::GEN_AI_TOOL_NAME, semconv::OUTCOME, semconv::REASON],
        "tool calls that ended";
    PROCESS_ACTIVE = "jig.process.active", UpDownCounter, "{process}", [],
        "runs and started processes in progress";
    PROCESS_DURATION = "jig.process.duration", Histogram(WORK_BUCKETS), "s",
        [semconv::PROCESS_TERMINATION_REASON],
        "duration of runs and started processes";
    LIMITS_EXCEEDED = "jig.process.limits_exceeded", Counter, "{process}",
        [semconv::LIMIT_EXCEEDED],
        "processes that a limit ended";
    PROCESS_CPU_TIME = "jig.process.cpu.time", Counter, "s", [semconv::CPU_MODE],
        "CPU time of processes that ended";
    PROCESS_MEMORY_PEAK = "jig.process.memory.peak", Histogram(MEMORY_BUCKETS), "By", [],
        "largest resident set of each process that ended";
    PROCESS_OUTPUT = "jig.process.output", Counter, "By",
        [semconv::STREAM, semconv::PROCESS_TRUNCATED],
        "output of processes that ended";
    ADMISSION_ACTIVE = "jig.admission.active", UpDownCounter, "{call}", [],
        "calls that hold a call permit and have started";
    ADMISSION_QUEUED = "jig.admission.queued", UpDownCounter, "{call}", [],
        "calls in admission queues";
    ADMISSION_WAIT = "jig.admission.wait", Histogram(RPC_BUCKETS), "s", [],
        "time that admitted calls spent in admission queues";
    ADMISSION_REJECTED = "jig.admission.rejected", Counter, "{call}", [semconv::DENIED_BY],
        "calls that admission control rejected";
    SANDBOXES = "jig.sandbox.count", UpDownCounter, "{sandbox}", [semconv::SANDBOX_STATE],
        "sandboxes";
    SANDBOX_BUILDS = "jig.sandbox.builds", Counter, "{sandbox}", [semconv::SANDBOX_SLOT],
        "sandboxes that were made ready for a run";
    SANDBOX_FALLBACKS = "jig.sandbox.fallbacks", UpDownCounter, "{level}", [],
        "isolation levels from the minimum on that workspaces cannot use";
    AUTH_FAILURES = "jig.auth.failures", Counter, "{call}", [semconv::REASON],
        "RPCs that authentication or the role of the key rejected";
    POLICY_DENIALS = "jig.policy.denials", Counter, "{call}", [semconv::DENIED_BY],
        "tool calls that policy, keys or approvals denied";
    APPROVALS_PENDING = "jig.approval.pending", UpDownCounter, "{approval}", [],
        "pending approvals";
    JOBS = "jig.job.count", UpDownCounter, "{job}", [semconv::JOB_STATE],
        "jobs that have not ended";
    JOBS_ENDED = "jig.job.ended", Counter, "{job}", [semconv::JOB_STATE],
        "jobs that ended";
    FLEET_JOBS = "jig.fleet.jobs", Counter, "{job}", [semconv::FLEET_QUEUE, semconv::FLEET_EVENT],
        "what happened to jobs of the fleet at this daemon. Each claim has one other event when it is settled";
    FLEET_FREE_PLACES = "jig.fleet.free_places", UpDownCounter, "{job}", [semconv::FLEET_QUEUE],
        "jobs of the fleet that this daemon would begin now";
    FLEET_NAME_TAKEN = "jig.fleet.daemon_id_taken", UpDownCounter, "{daemon}", [],
        "1 while another daemon of the fleet has the id of this one, which takes no jobs of it then";
    SESSIONS_OPEN = "jig.session.open", UpDownCounter, "{session}", [],
        "sessions with open files";
    STORE_SIZE = "jig.store.size", UpDownCounter, "By", [semconv::STORE_PART],
        "size of the state directory's parts";
    TELEMETRY_LOST = "jig.telemetry.lost", Counter, "{item}", [semconv::SIGNAL],
        "spans and log records that the collector did not accept";
    AUDIT_WRITTEN = "jig.audit.written", Counter, "{line}", [],
        "lines of the audit log that were written";
    AUDIT_LOST = "jig.audit.lost", Counter, "{line}", [],
        "lines of the audit log that were lost";
    DAEMON_CPU_TIME = "process.cpu.time", Counter, "s", [semconv::CPU_MODE],
        "CPU time of the daemon";
    DAEMON_MEMORY = "process.memory.usage", UpDownCounter, "By", [],
        "resident memory of the daemon";
    DAEMON_THREADS = "process.thread.count", UpDownCounter, "{thread}", [],
        "threads of the daemon";
    DAEMON_DESCRIPTORS = "process.unix.file_descriptor.count", UpDownCounter,
        "{file_descriptor}", [],
        "open file descriptors of the daemon";
    DAEMON_UPTIME = "process.uptime", Gauge, "s", [],
        "time since the start of the daemon";
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, env, fs};

    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/telemetry.md");
    const HEADER: &str = "| metric | kind | unit | attributes | content |\n|---|---|---|---|---|\n";

    /// The rows of the documentation.
    fn documented_rows() -> String {
        let row = |metric: &&MetricSpec| {
            let attributes: Vec<_> =
                metric.attributes.iter().map(|attribute| format!("`{attribute}`")).collect();
            format!(
                "| `{}` | {} | `{}` | {} | {} |\n",
                metric.name,
                metric.kind.name(),
                metric.unit,
                if attributes.is_empty() { "–".to_owned() } else { attributes.join(", ") },
                metric.description,
            )
        };
        METRICS.iter().map(row).collect()
    }

    /// `JIG_UPDATE_PAGES=1` rewrites the table.
    #[test]
    fn metrics_page_has_the_table() {
        let page = fs::read_to_string(PAGE).unwrap();
        let (before, rest) = page.split_once(HEADER).expect("the page has the table");
        let (rows, after) = rest.split_once("\n\n").unwrap();
        let expected = documented_rows();
        if env::var_os("JIG_UPDATE_PAGES").is_some() {
            fs::write(PAGE, format!("{before}{HEADER}{expected}\n{after}")).unwrap();
            return;
        }
        assert_eq!(
            format!("{rows}\n"),
            expected,
            "rewrite docs/telemetry.md with: JIG_UPDATE_PAGES=1 cargo test --lib metrics_page"
        );
    }

    #[test]
    fn names_are_unique_and_in_known_namespaces() {
        let names: BTreeSet<_> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
        for name in names {
            let known = ["rpc.server.", "gen_ai.", "process.", "jig."];
            assert!(known.iter().any(|namespace| name.starts_with(namespace)), "{name}");
        }
    }
}
