//! Metrics that are read when they are collected: queues, sandboxes, jobs and stored bytes.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use opentelemetry::KeyValue;

use crate::daemon::{
    pipeline::Pipeline,
    sandbox::pools::SandboxPools,
    telemetry::{
        metrics::{
            Metrics,
            table::{self, MetricSpec},
        },
        semconv,
    },
};

/// Observes the state of the daemon. Does nothing if metrics are not recorded.
pub(super) fn observe(pipeline: &Arc<Pipeline>, sandboxes: &Arc<SandboxPools>) {
    let metrics = pipeline.telemetry.metrics();
    observe_pipeline(metrics, pipeline);
    observe_jobs(metrics, pipeline);
    observe_store(metrics, pipeline);
    observe_sandboxes(metrics, sandboxes);

    let contexts = pipeline.workspaces.configured().iter();
    let fallbacks: usize = contexts.map(|context| context.isolation.failed_levels.len()).sum();
    metrics.observe(&table::SANDBOX_FALLBACKS, move |observe| observe(fallbacks as u64, &[]));
}

/// Observes one number. The meter does not keep the pipeline alive: the pipeline holds the meter.
fn observe_number(
    metrics: &Metrics,
    spec: &'static MetricSpec,
    pipeline: &Arc<Pipeline>,
    read: impl Fn(&Pipeline) -> usize + Send + Sync + 'static,
) {
    let pipeline = Arc::downgrade(pipeline);
    metrics.observe(spec, move |observe| {
        if let Some(pipeline) = pipeline.upgrade() {
            observe(read(&pipeline) as u64, &[]);
        }
    });
}

fn observe_pipeline(metrics: &Metrics, pipeline: &Arc<Pipeline>) {
    observe_number(metrics, &table::ADMISSION_ACTIVE, pipeline, |pipeline| {
        pipeline.admission.active()
    });
    observe_number(metrics, &table::ADMISSION_QUEUED, pipeline, |pipeline| {
        pipeline.admission.queued()
    });
    observe_number(metrics, &table::APPROVALS_PENDING, pipeline, |pipeline| {
        pipeline.approvals.list_pending().len()
    });
    observe_number(metrics, &table::SESSIONS_OPEN, pipeline, |pipeline| {
        pipeline.state_dir.sessions().open_count()
    });
}

fn observe_jobs(metrics: &Metrics, pipeline: &Arc<Pipeline>) {
    let state = |name: &'static str| KeyValue::new(semconv::JOB_STATE, name);
    let jobs = Arc::downgrade(&pipeline.jobs);
    metrics.observe(&table::JOBS, move |observe| {
        let Some(jobs) = jobs.upgrade() else { return };
        for (name, count) in jobs.live_counts() {
            observe(count, &[state(name)]);
        }
    });

    let jobs = Arc::downgrade(&pipeline.jobs);
    metrics.observe(&table::JOBS_ENDED, move |observe| {
        let Some(jobs) = jobs.upgrade() else { return };
        for (name, count) in jobs.ended_counts() {
            observe(count, &[state(name)]);
        }
    });
}

fn observe_store(metrics: &Metrics, pipeline: &Arc<Pipeline>) {
    let database = pipeline.state_dir.database_path();
    let sessions = Arc::downgrade(pipeline.state_dir.sessions());
    metrics.observe(&table::STORE_SIZE, move |observe| {
        let part = |name: &'static str| [KeyValue::new(semconv::STORE_PART, name)];
        observe(database_bytes(&database), &part("database"));
        if let Some(sessions) = sessions.upgrade() {
            observe(sessions.used_bytes(), &part("sessions"));
        }
    });
}

/// Size of the database and of its write-ahead log. An embedded daemon has no files.
fn database_bytes(path: &Path) -> u64 {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let size = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.len());
    size(path) + size(&PathBuf::from(log))
}

fn observe_sandboxes(metrics: &Metrics, sandboxes: &Arc<SandboxPools>) {
    let pools = Arc::downgrade(sandboxes);
    metrics.observe(&table::SANDBOXES, move |observe| {
        let Some(pools) = pools.upgrade() else { return };
        for (state, count) in [
            ("idle", pools.idle_count(|_| true)),
            ("in_use", pools.in_use_count(|_| true)),
            ("quarantined", pools.quarantined_count(|_| true)),
        ] {
            observe(count.into(), &[KeyValue::new(semconv::SANDBOX_STATE, state)]);
        }
    });

    let pools = Arc::downgrade(sandboxes);
    metrics.observe(&table::SANDBOX_BUILDS, move |observe| {
        let Some(pools) = pools.upgrade() else { return };
        for (slot, count) in
            ["new", "reused", "recycled", "warm_shell"].into_iter().zip(pools.build_counts())
        {
            observe(count, &[KeyValue::new(semconv::SANDBOX_SLOT, slot)]);
        }
    });
}
