//! The end of approvals that a daemon that died left pending.

use super::request::{ApprovalResolution, decided_record, lost_call_fields};
use crate::daemon::store::{
    approvals::{ApprovalEndState, ApprovalRecord},
    session::SessionId,
    state_dir::StateDir,
};

/// Records in the session that an approval was lost. Returns the record with that end.
pub(super) fn mark_lost(record: ApprovalRecord, state_dir: &StateDir) -> ApprovalRecord {
    let lost = ApprovalRecord {
        end: Some(ApprovalResolution::undecided(ApprovalEndState::Lost).to_approval_end()),
        ..record
    };

    // Before the database stores it: a crash in between records it twice rather than never.
    let session = SessionId::parse(&lost.session)
        .map(|id| state_dir.sessions().open_existing(&lost.workspace, &id))
        .transpose();
    let recorded = match session.map(Option::flatten) {
        Ok(Some(session)) => {
            session.record_without_step(decided_record(&lost, &lost_call_fields(&lost)))
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = recorded {
        tracing::error!(%error, "cannot record the end of an approval");
    }

    lost
}
