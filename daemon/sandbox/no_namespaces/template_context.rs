//! What all runs of a workspace in the daemon's namespaces are made from.

use super::super::{
    plan::{SandboxPlan, WorkspacePlan},
    wire::SandboxIdentity,
};
use crate::daemon::sys::bpf::Instruction;

/// It, in the template and all that is made from it.
#[derive(Debug)]
pub(super) struct TemplateContext<'a> {
    /// The daemon's plan.
    pub(super) plan: &'a SandboxPlan,
    /// The workspace.
    pub(super) workspace: &'a WorkspacePlan,
    /// As whom commands run.
    pub(super) identity: SandboxIdentity,
    /// The seccomp filter of commands.
    pub(super) filter: Vec<Instruction>,
}
