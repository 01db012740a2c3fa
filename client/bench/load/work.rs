//! The random work of an agent.

use std::time::Instant;

use super::{agent::Agent, approvals, jobs, streams};

/// Calls until the load ends, and then checks the final state.
pub(super) async fn work(mut agent: Agent) {
    while Instant::now() < agent.plan.end {
        match agent.random.below(100) {
            0..40 => agent.run().await,
            40..48 => agent.repeat().await,
            48..73 => {
                let (id, caller) = (agent.next_id("file"), agent.plan.caller.clone());
                agent.files.change_or_read(&caller, &id, &mut agent.random).await;
            }
            73..83 => streams::stream(&mut agent).await,
            83..93 => jobs::job(&mut agent).await,
            _ if agent.plan.has_approvals => approvals::ask(&mut agent).await,
            _ => agent.run().await,
        }
    }

    let caller = agent.plan.caller.clone();
    agent.files.check_all(&caller).await;
    while let Some((id, request, response)) = agent.acknowledged.pop_front() {
        agent.repeat_run(&id, request, &response).await;
    }
}
