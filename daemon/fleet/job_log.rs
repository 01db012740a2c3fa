//! Reports what happens to the jobs of a fleet at this daemon: in the counts of their queue, and in
//! the audit log.

use std::sync::Arc;

use super::{
    counts::{FleetJobEvent, FleetQueueState},
    work_source::Work,
};
use crate::{
    api::v1::{FleetJobRecord, JobState},
    daemon::{
        error::Reason,
        telemetry::{
            access_log::CallRecord,
            audit::{AuditEvent, AuditLog},
        },
    },
};

/// Where the events of fleet jobs are reported.
#[derive(Debug)]
pub(super) struct FleetJobLog {
    pub(super) audit: AuditLog,
    pub(super) daemon_id: Arc<str>,
    pub(super) queues: Vec<Arc<FleetQueueState>>,
}

/// What an event is about. Empty texts are unknown.
#[derive(Debug, Default)]
pub(super) struct FleetJobFacts<'a> {
    pub(super) queue: &'a str,
    /// Id of the fleet job.
    pub(super) id: &'a str,
    /// Id of the job of this daemon that runs it.
    pub(super) local_id: String,
    pub(super) request_id: &'a str,
    pub(super) tool: &'a str,
    pub(super) workspace: &'a str,
    pub(super) principal: &'a str,
    pub(super) session: &'a str,
    /// The daemon that had the claim of a lost job.
    pub(super) owner: &'a str,
    pub(super) reason: Option<Reason>,
    /// The state of the ended job.
    pub(super) outcome: &'static str,
}

impl<'a> FleetJobFacts<'a> {
    pub(super) fn of_work(work: &'a Work) -> Self {
        Self {
            queue: &work.queue,
            id: &work.id,
            tool: &work.request.tool,
            workspace: &work.workspace,
            principal: &work.principal,
            session: work.session.as_deref().unwrap_or_default(),
            ..Self::default()
        }
    }

    pub(super) fn of_record(id: &'a str, record: &'a FleetJobRecord) -> Self {
        Self {
            queue: &record.queue,
            id,
            request_id: &record.request_id,
            tool: &record.tool,
            workspace: &record.workspace,
            principal: &record.principal,
            session: &record.session,
            ..Self::default()
        }
    }
}

impl FleetJobLog {
    /// Counts an event, and writes its line.
    pub(super) fn report(&self, event: FleetJobEvent, facts: FleetJobFacts<'_>) {
        if let Some(queue) = self.queues.iter().find(|queue| queue.name() == facts.queue) {
            queue.count(event);
        }
        let known = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        self.audit.record_with(AuditEvent::FleetJob, || {
            let details = [
                ("fleet_event", event.name()),
                ("queue", facts.queue),
                ("fleet_job_id", facts.id),
                ("daemon_id", &self.daemon_id),
                ("owner", facts.owner),
            ];
            let details = details.into_iter().filter(|(_, text)| !text.is_empty());
            let record = CallRecord {
                tool: known(facts.tool),
                principal: known(facts.principal),
                workspace: known(facts.workspace),
                session: known(facts.session),
                request_id: known(facts.request_id),
                job_id: known(&facts.local_id),
                reason: facts.reason.map(|reason| reason.name().to_owned()),
                outcome: known(facts.outcome),
                ..CallRecord::default()
            };
            (record, details.map(|(name, text)| (name.to_owned(), text.into())).collect())
        });
    }

    /// Reports that a job of an earlier start was given back.
    pub(super) fn report_release(&self, id: &str, record: &FleetJobRecord, local_id: &str) {
        let facts = FleetJobFacts::of_record(id, record);
        let facts = FleetJobFacts { local_id: local_id.to_owned(), ..facts };
        self.report(FleetJobEvent::Released, facts);
    }

    /// Reports the end of a job that this daemon has stored without running the job, or after a
    /// restart. `reason`: why the job was rejected, if it was.
    pub(super) fn report_end(&self, id: &str, ended: &FleetJobRecord, reason: Option<Reason>) {
        let state = ended.job.as_ref().map(|job| job.state()).unwrap_or_default();
        let (event, outcome) = match state {
            JobState::Lost => (FleetJobEvent::Lost, "lost"),
            _ if reason.is_some() => (FleetJobEvent::Rejected, "failed"),
            JobState::Succeeded => (FleetJobEvent::Finished, "succeeded"),
            JobState::Cancelled => (FleetJobEvent::Finished, "cancelled"),
            JobState::Failed | JobState::Unspecified | JobState::Queued | JobState::Running => {
                (FleetJobEvent::Finished, "failed")
            }
        };
        let facts = FleetJobFacts {
            local_id: ended.local_job_id.clone(),
            owner: if event == FleetJobEvent::Lost { &ended.daemon_id } else { "" },
            reason,
            outcome,
            ..FleetJobFacts::of_record(id, ended)
        };
        self.report(event, facts);
    }
}
