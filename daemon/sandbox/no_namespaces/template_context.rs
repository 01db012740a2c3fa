//! What all L1 runs of a workspace are made from.

use super::super::{
    plan::{SandboxPlan, WorkspacePlan},
    wire::SandboxIdentity,
};
use crate::daemon::sys::bpf::Instruction;

/// Shared by the template and all processes made from it.
#[derive(Debug)]
pub(super) struct TemplateContext<'a> {
    pub(super) plan: &'a SandboxPlan,
    pub(super) workspace: &'a WorkspacePlan,
    pub(super) identity: SandboxIdentity,
    pub(super) filter: Vec<Instruction>,
}
