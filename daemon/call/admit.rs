//! How calls use what is admitted: let in to a place when they may be made.

use super::{
    InPlace, Pipeline,
    access::principal::Principal,
    admission::{Admitted, Applicant},
    context::Incoming,
};
use crate::daemon::{error::Error, task, tool::Tool};

impl Pipeline {
    /// Waits for a place for a call that is no tool's.
    pub(crate) async fn enter(&self, incoming: &Incoming) -> Result<Admitted, Error> {
        let applicant = Applicant {
            deadline: incoming.deadline,
            ..Applicant::from(&*incoming.principal)
        };
        self.admission.enter(applicant, &self.drain).await
    }

    /// Leaves something for others, of all that is had in turn, from now on: callers are told apart by keys.
    pub(crate) fn share(&self) {
        self.admission.share();
        for scene in &self.scenes {
            scene.files.share();
            scene.sandboxes.share();
        }
    }

    /// Waits for a place for a call of the tool `T`.
    pub(super) async fn admit<'a, T: Tool>(
        &self,
        applicant: impl Into<Applicant<'a>>,
    ) -> Result<InPlace, Error> {
        let applicant = applicant.into();
        // Taken before the drain is looked at: whoever is let in is waited for.
        let waited_for = task::hold();
        let admitted = match T::IS_WAITED_FOR {
            true => self.admission.enter(applicant, &self.drain).await,
            false => self.admission.enter_process(applicant, &self.drain).await,
        };
        Ok(InPlace {
            admitted: admitted?,
            waited_for,
        })
    }

    /// Waits for a place for the call of a job.
    pub(super) async fn admit_job(&self, principal: &Principal) -> Result<InPlace, Error> {
        let waited_for = task::hold();
        let admitted = self.admission.enter(principal.into(), &self.drain).await?;
        Ok(InPlace {
            admitted,
            waited_for,
        })
    }
}
