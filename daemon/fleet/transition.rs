//! The states of a job's record, and what they mean for a daemon that has its message.
//!
//! ```text
//! absent ──▶ QUEUED ──▶ CLAIMED by a daemon ──▶ ENDED
//!    │         ▲  ▲        │  │   ▲    │
//!    └─────────┼──┼───▶────┘  │   └────┘ another daemon, if the first is dead and the job may be
//!              │  │           │          run again
//!              │  └───────────┘ given back: not begun, or lost and to be run again
//!              └ submitted by a daemon
//! ```

use std::time::SystemTime;

use super::identity::FleetIdentity;
use crate::api::v1::{FleetJobRecord, FleetJobState, Job};

/// What a daemon does with the message of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClaimDecision {
    /// No daemon has the job.
    Claim,
    /// This daemon has the job: it was delivered again, or the daemon has restarted.
    Resume,
    /// Another daemon has the job, or had it when it died.
    CheckOwner,
    /// The job has ended.
    Ended,
    /// The record is of another request with the same request id.
    Conflict,
    /// The job was begun too often.
    Exhausted,
}

/// Decides by the record that there is, and by one that was made from the message of this daemon.
///
/// A job whose message is not signed has the principal of its queue. The queue may have another one
/// since the first claim of the job, which keeps the first one.
pub(super) fn decide(
    found: Option<&FleetJobRecord>,
    message: &FleetJobRecord,
    daemon_id: &str,
    max_deliver: u32,
) -> ClaimDecision {
    let Some(found) = found else {
        return ClaimDecision::Claim;
    };
    // It replaced a damaged record, so nothing else of the request is known.
    if found.state() == FleetJobState::Ended && found.request_sha256.is_empty() {
        return ClaimDecision::Ended;
    }
    let in_other_workspace = !found.workspace.is_empty()
        && !message.workspace.is_empty()
        && found.workspace != message.workspace;
    let is_signed = |record: &FleetJobRecord| !record.signature_sha256.is_empty();
    let of_other_principal =
        found.principal != message.principal && (is_signed(found) || is_signed(message));
    if found.request_sha256 != message.request_sha256 || of_other_principal || in_other_workspace {
        return ClaimDecision::Conflict;
    }

    match found.state() {
        FleetJobState::Ended => ClaimDecision::Ended,
        FleetJobState::Claimed if found.daemon_id == daemon_id => ClaimDecision::Resume,
        FleetJobState::Claimed => ClaimDecision::CheckOwner,
        FleetJobState::Queued | FleetJobState::Unspecified => {
            if found.attempts >= max_deliver {
                ClaimDecision::Exhausted
            } else {
                ClaimDecision::Claim
            }
        }
    }
}

/// Whether a job whose daemon is dead may be run by another.
pub(super) fn may_run_again(record: &FleetJobRecord, max_deliver: u32) -> bool {
    record.retry_if_lost && record.attempts < max_deliver
}

/// The record after a claim.
pub(super) fn claimed(
    record: &FleetJobRecord,
    claimant: &FleetIdentity,
    workspace: &str,
) -> FleetJobRecord {
    FleetJobRecord {
        state: FleetJobState::Claimed.into(),
        daemon_id: claimant.daemon_id.to_string(),
        start_id: claimant.start_id.to_string(),
        workspace: workspace.to_owned(),
        local_job_id: String::new(),
        approval_id: String::new(),
        attempts: record.attempts + 1,
        claim_time: Some(SystemTime::now().into()),
        ..record.clone()
    }
}

/// The record after a job was given back. `attempts` are those that count.
pub(super) fn requeued(record: &FleetJobRecord, attempts: u32) -> FleetJobRecord {
    FleetJobRecord {
        state: FleetJobState::Queued.into(),
        daemon_id: String::new(),
        start_id: String::new(),
        local_job_id: String::new(),
        approval_id: String::new(),
        attempts,
        claim_time: None,
        ..record.clone()
    }
}

/// The record of an ended job, which has the fleet's names for it.
pub(super) fn ended(id: &str, record: &FleetJobRecord, job: Job) -> FleetJobRecord {
    let result = job.result.clone().map(|mut result| {
        // A pending result names another job, which this one has submitted.
        if !result.pending {
            id.clone_into(&mut result.job_id);
        }
        result
    });
    let end_time = job.end_time.unwrap_or_else(|| SystemTime::now().into());
    FleetJobRecord {
        state: FleetJobState::Ended.into(),
        end_time: Some(end_time),
        approval_id: String::new(),
        local_job_id: if job.job_id == id { String::new() } else { job.job_id.clone() },
        job: Some(Job {
            job_id: id.to_owned(),
            submit_time: record.submit_time,
            end_time: Some(end_time),
            fleet: true,
            daemon_id: record.daemon_id.clone(),
            result,
            ..job
        }),
        ..record.clone()
    }
}

/// A job without a result of its own, in the words of its record.
pub(super) fn job_of_record(id: &str, record: &FleetJobRecord) -> Job {
    Job {
        job_id: id.to_owned(),
        tool: record.tool.clone(),
        dialect: record.dialect.clone(),
        queue: record.queue.clone(),
        priority: record.priority,
        session: record.session.clone(),
        principal: record.principal.clone(),
        submit_time: record.submit_time,
        fleet: true,
        daemon_id: record.daemon_id.clone(),
        ..Job::default()
    }
}

/// Identifies the claim of a record among those of its daemon.
pub(super) fn claim_id(record: &FleetJobRecord) -> String {
    let time = record.claim_time.unwrap_or_default();
    format!("{}.{:09}", time.seconds, time.nanos)
}

/// Whether a record is still the claim of a daemon.
pub(super) fn is_claim_of(record: &FleetJobRecord, daemon_id: &str, claim: &str) -> bool {
    record.state() == FleetJobState::Claimed
        && record.daemon_id == daemon_id
        && claim_id(record) == claim
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const MAX_DELIVER: u32 = 3;

    fn claimed_by(record: &FleetJobRecord, daemon_id: &str) -> FleetJobRecord {
        let claimant = FleetIdentity { daemon_id: daemon_id.into(), start_id: "1".into() };
        claimed(record, &claimant, "main")
    }

    fn message() -> FleetJobRecord {
        FleetJobRecord {
            state: FleetJobState::Queued.into(),
            queue: "build".to_owned(),
            principal: "key:ci".to_owned(),
            request_sha256: vec![1].into(),
            ..FleetJobRecord::default()
        }
    }

    fn decide_with(found: Option<&FleetJobRecord>) -> ClaimDecision {
        decide(found, &message(), "me", MAX_DELIVER)
    }

    #[test]
    fn each_state_has_a_decision() {
        assert_eq!(decide_with(None), ClaimDecision::Claim);

        let queued = message();
        assert_eq!(decide_with(Some(&queued)), ClaimDecision::Claim);
        let mine = claimed_by(&queued, "me");
        assert_eq!((mine.attempts, mine.workspace.as_str()), (1, "main"));
        assert_eq!((mine.start_id.as_str(), requeued(&mine, 1).start_id.as_str()), ("1", ""));
        assert_eq!(decide_with(Some(&mine)), ClaimDecision::Resume);
        let other = claimed_by(&queued, "other");
        assert_eq!(decide_with(Some(&other)), ClaimDecision::CheckOwner);

        let exhausted = requeued(&mine, MAX_DELIVER);
        assert_eq!(decide_with(Some(&exhausted)), ClaimDecision::Exhausted);
        let ended = ended("fleet-1", &mine, Job::default());
        assert_eq!(decide_with(Some(&ended)), ClaimDecision::Ended);
    }

    #[test]
    fn another_request_is_a_conflict_in_every_state() {
        let mine = claimed_by(&message(), "me");
        for found in [message(), mine.clone(), ended("fleet-1", &mine, Job::default())] {
            let signature_sha256 = Bytes::from_static(&[3]);
            for other in [
                FleetJobRecord { request_sha256: vec![2].into(), ..found.clone() },
                FleetJobRecord {
                    principal: "key:other".to_owned(),
                    signature_sha256,
                    ..found.clone()
                },
            ] {
                assert_eq!(decide_with(Some(&other)), ClaimDecision::Conflict);
            }
        }
    }

    #[test]
    fn jobs_of_a_queue_keep_its_first_key() {
        let signed = |record: &FleetJobRecord| FleetJobRecord {
            signature_sha256: vec![3].into(),
            ..record.clone()
        };
        let mine = claimed_by(&message(), "me");
        let ended = ended("fleet-1", &mine, Job::default());
        let rekeyed = FleetJobRecord { principal: "key:new".to_owned(), ..message() };
        for (found, expected) in [
            (message(), ClaimDecision::Claim),
            (mine, ClaimDecision::Resume),
            (claimed_by(&message(), "other"), ClaimDecision::CheckOwner),
            (ended, ClaimDecision::Ended),
        ] {
            assert_eq!(decide(Some(&found), &rekeyed, "me", MAX_DELIVER), expected);
            // Signatures say whose job it is, and whose it is not.
            for (found, message) in [(&signed(&found), &rekeyed), (&found, &signed(&rekeyed))] {
                let decided = decide(Some(found), message, "me", MAX_DELIVER);
                assert_eq!(decided, ClaimDecision::Conflict);
            }
        }
    }

    #[test]
    fn an_end_that_replaced_a_damaged_record_stays() {
        let mine = FleetJobRecord { request_sha256: [][..].into(), ..claimed_by(&message(), "me") };
        assert_eq!(decide_with(Some(&mine)), ClaimDecision::Conflict);
        let ended = ended("fleet-1", &mine, Job::default());
        assert_eq!(decide_with(Some(&ended)), ClaimDecision::Ended);
    }

    #[test]
    fn an_ended_job_has_the_names_of_the_fleet() {
        let record = claimed_by(&message(), "me");
        let local =
            Job { job_id: "01J".to_owned(), result: Some(Default::default()), ..Job::default() };
        let ended = ended("fleet-1", &record, local);
        let job = ended.job.unwrap();
        assert_eq!((job.job_id.as_str(), job.daemon_id.as_str()), ("fleet-1", "me"));
        assert_eq!(job.result.unwrap().job_id, "fleet-1");
        assert_eq!(ended.local_job_id, "01J");
        assert!(ended.end_time.is_some());
    }

    #[test]
    fn a_lost_job_is_run_again_if_its_submission_says_so() {
        let lost = claimed_by(&message(), "dead");
        assert!(!may_run_again(&lost, MAX_DELIVER));
        let retried = FleetJobRecord { retry_if_lost: true, ..lost };
        assert!(may_run_again(&retried, MAX_DELIVER));
        assert!(!may_run_again(&FleetJobRecord { attempts: MAX_DELIVER, ..retried }, MAX_DELIVER));
    }
}
